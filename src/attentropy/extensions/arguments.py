"""The arguments of extend(): what cannot work is refused in one sentence before any measurement."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from attentropy.extensions.candidates import Task, why_unscaled
from attentropy.extensions.export import why_no_factors
from attentropy.extensions.record import Record
from attentropy.models.intercept.candidates import device_of
from attentropy.models.losses.probes import position_limit
from attentropy.models.losses.reading import has_decoder_beside, logits_of, read
from attentropy.models.progress import Listener

LAST = 1024  # tokens at the end of a text that are judged, at most
LEFT_OUT = (
    "What depends on the row cannot be exported, so it is left out: log n, windows with sinks, "
    "clipped positions."
)
LEAST = {"to": 2, "trained": 2}
FEW, ENOUGH = 3, 24576  # texts at least; tokens of all texts where they are short


def checked(
    model: Any, tokens: Any, *, to: int, texts: int | None, **counts: Any
) -> tuple[Tensor, int]:
    """Tokens as ids [n], and the number of texts.

    Args:
        model: the model.
        tokens: ids of text.
        to: the length that the model should read.
        texts: number of texts that judge; None for as many as fit and are needed.
        counts: other counts to check; None where one is not given.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError("model", "a torch.nn.Module", type(model).__name__)
    given = {"to": to, "texts": texts, **counts}
    for name, value in given.items():
        least = LEAST.get(name, 1)
        missing = value is None and name != "to"
        if not missing and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ArgumentError(name, f"an integer >= {least}", repr(value))
    ids = _ids(tokens)
    judging, apart = len(ids) - len(ids) // 4, min(LAST, to // 2)
    fit = 1 + (judging - to) // apart if judging >= to else 0
    count = min(max(FEW, ENOUGH // to), max(FEW, fit)) if texts is None else texts
    if fit < count:
        least = -(-4 * (to + (count - 1) * apart) // 3)
        raise ArgumentError("tokens", f"at least {least} for {count} texts of {to}", len(ids))
    return ids, count


def whole(value: Any) -> Any:
    """An int of any integer, such as one of numpy; other values as they are.

    Args:
        value: a count that a user gives.
    """
    return int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value


def check_begin(begin: Any) -> tuple[int, ...]:
    """Special tokens as a tuple of ids.

    Args:
        begin: what the user gives.
    """
    found = () if begin is None else begin
    if isinstance(found, Tensor):
        found = found.reshape(-1).tolist()
    if isinstance(found, str) or not isinstance(found, Sequence):
        raise ArgumentTypeError("begin", "a list of ids", repr(begin))
    found = tuple(whole(one) for one in found)
    if any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in found):
        raise ArgumentError("begin", "ids of tokens, 0 or more", repr(begin))
    return found


def _ids(tokens: Any) -> Tensor:
    """One row of ids, of a tensor, an array or a list."""
    if isinstance(tokens, str):
        raise ArgumentTypeError("tokens", "ids of tokens", "a string")
    try:
        ids = torch.as_tensor(tokens).reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(tokens).__name__
        raise ArgumentTypeError("tokens", "ids of tokens, one row", kind) from error
    if len(ids) and (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool):
        raise ArgumentTypeError("tokens", "ids of tokens", f"numbers of type {ids.dtype}")
    return ids.long().cpu()


def check_length(model: nn.Module, to: int) -> None:
    """Refuse a length for which the model has no positions.

    Args:
        model: the model.
        to: the length that it should read.
    """
    limit = position_limit(model)
    if limit is not None and to > limit:
        rule = f"at most {limit}: {type(model).__name__} has a table of that many positions"
        raise ArgumentError("to", f"{rule}, and nothing reads beyond it", to)


def refused(model: nn.Module, to: int, error: Exception) -> UnsupportedError:
    """The exception to raise for an error in the model's own code.

    Args:
        model: the model.
        to: the length that it should read.
        error: what it raised.
    """
    why = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return UnsupportedError(f"{type(model).__name__} does not read {to} tokens ({why})")


def check_readable(model: nn.Module, ids: Tensor) -> None:
    """Refuse a model that gives no logits for these ids.

    Args:
        model: the model.
        ids: tokens [n].
    """
    _check_model(model)
    table = getattr(model, "get_input_embeddings", lambda: None)()
    rows = getattr(table, "num_embeddings", None)
    least, most = int(ids.min()), int(ids.max())
    if least < 0 or (rows is not None and most >= rows):
        rule = "ids of the model's vocabulary" + (f", 0 to {rows - 1}" if rows else "")
        raise ArgumentError("tokens", rule, least if least < 0 else most)
    given = ids[None, :16].to(device_of(model))
    try:
        with torch.no_grad():
            logits = logits_of(read(model, given), given)
    except Exception as error:  # whatever the code of a model raises
        name, why = type(model).__name__, f"{type(error).__name__}: {error}"
        raise UnsupportedError(f"{name} cannot read these tokens ({why})") from error
    if logits is None:
        raise UnsupportedError(f"{type(model).__name__} gives no logits of the next token")


def _check_model(model: nn.Module) -> None:
    """Refuse a model without weights, and one that reads two texts."""
    name = type(model).__name__
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ArgumentError("model", "a model whose weights are loaded", f"{name} on meta")
    if has_decoder_beside(model):
        why = "has an encoder and a decoder, and extend takes models that read one text"
        raise UnsupportedError(f"{name} {why}")


def check_helpers(listener: Any, done: Any, encode: Any) -> Listener:
    """The listener; refuses what is not a Listener, a Record or a function.

    Args:
        listener: of the user, or None.
        done: the record to continue, or None.
        encode: a string to ids, or None.
    """
    if encode is not None and not callable(encode):
        raise ArgumentTypeError("encode", "a function of a string", type(encode).__name__)
    if done is not None and not isinstance(done, Record):
        raise ArgumentTypeError("done", "a Record", type(done).__name__)
    if listener is not None and not isinstance(listener, Listener):
        raise ArgumentTypeError("listener", "a Listener", type(listener).__name__)
    return listener or Listener()


def left_out(model: nn.Module, task: Task, *, exported: bool) -> list[str]:
    """What is not tried, and why, in sentences.

    Args:
        model: the model.
        task: what it is extended to.
        exported: whether only what can be exported is tried.
    """
    found = []
    why = why_unscaled(model)
    if why is not None:
        rest = "Temperatures" if exported else "Log n, windows with sinks and temperatures"
        found.append(f"No scaling of positions is tried: {why}. {rest} are.")
    if exported:
        found.append(LEFT_OUT)
        why = why_no_factors(model, task.layers)
        found += [] if why is None else [f"Factors of heads are left out: {why}."]
    return found
