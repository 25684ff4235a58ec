"""The arguments of extend(): what cannot work is refused in one sentence before any measurement."""

from typing import Any

import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from attentropy.models.intercept.candidates import device_of
from attentropy.models.losses.probes import position_limit
from attentropy.models.losses.reading import logits_of, read

LAST = 1024  # tokens at the end of a text that are judged, at most
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
