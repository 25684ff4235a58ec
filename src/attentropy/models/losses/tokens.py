"""token_losses(): the loss of every next token, in the memory of one piece of the text."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.distributed.team import ALONE, Team
from attentropy.models.intercept.candidates import device_of
from attentropy.models.losses.lockstep import in_step
from attentropy.models.losses.reading import logits_of, read, takes, takes_cache

ROWS = 128  # positions whose logits become float32 at a time


def token_losses(
    model: nn.Module, tokens: Tensor, *, positions: Tensor | None = None, chunk: int = 1024
) -> Tensor:
    """-log p(token[i + 1] | tokens up to i) for every i: [B, N - 1] in float32 nats.

    A text longer than `chunk` is read in pieces of that size with a cache of keys and values, so
    that the logits of one piece exist at a time; a model without such a cache reads it at once.

    Args:
        model: predicts the next token: its output, or `logits` of it, is [B, N, vocabulary].
        tokens: ids [B, N], N at least 2.
        positions: the position of every token, [N] or [B, N], for models that take `position_ids`;
            by default the model counts them itself.
        chunk: number of tokens in one forward pass.

    >>> from attentropy.lab.embedded import load_embedded
    >>> token_losses(load_embedded(), torch.tensor([list(b"To be, or not")])).shape
    torch.Size([1, 12])
    """
    _check(tokens, chunk)
    ids = tokens.to(device_of(model))
    places = None if positions is None else _placed(model, positions, ids)
    with torch.no_grad():
        parts = [losses for losses, _ in pieces(model, ids, places, chunk)]
    return torch.cat(parts, 1)


def truncated_losses(
    model: nn.Module,
    tokens: Tensor,
    *,
    trained: int,
    last: int,
    begin: Sequence[int] = (),
    chunk: int = 1024,
) -> Tensor:
    """The losses of the last `last` tokens if the model never reads more than `trained` tokens.

    Each token is predicted from the `trained` tokens before it or fewer, never fewer than half as
    many (unless the text begins): windows of `trained` tokens overlap by at least a half.

    Args:
        model: predicts the next token.
        tokens: ids [B, N].
        trained: the longest text that the model reads.
        last: number of tokens whose loss is asked for; below N.
        begin: ids that every text begins with, such as the beginning-of-sequence token; they
            stay in place of the oldest tokens.
        chunk: number of tokens in one forward pass.
    """
    _check(tokens, chunk)
    total = tokens.shape[1]
    if not 0 < last < total:
        raise ArgumentError("last", f"between 1 and {total - 1}", last)
    step = min(last, max(1, trained // 2))
    parts = []
    for end in range(total, total - last, -step):
        wanted = min(step, end - (total - last))
        window = tokens[:, max(0, end - trained) : end].clone()
        window[:, : len(begin)] = torch.tensor(begin, dtype=window.dtype, device=window.device)
        parts.append(token_losses(model, window, chunk=chunk)[:, -wanted:])
    return torch.cat(parts[::-1], 1)


def each_row(
    model: nn.Module,
    losses: Callable[[Tensor], Tensor],
    rows: Tensor,
    *,
    team: Team = ALONE,
) -> Tensor:
    """Losses of windows, one window at a time, on the CPU; processes share the windows out.

    Args:
        model: reads them; windows go side by side through one whose weights are not in memory.
        losses: of one window [1, n].
        rows: windows [W, n].
        team: the processes; each has the model.
    """
    run = in_step(model, tokens=Tensor.numel)
    return torch.cat(team.map(lambda row: losses(row[None]).cpu(), rows.unbind(), run=run))


def next_token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy of logits [B, n, V] with targets [B, n], in float32; 0 where a target is -100.

    Only a few rows of the logits are float32 at a time.

    Args:
        logits: of the next token, in any precision.
        targets: the next tokens.
    """
    lost = torch.empty(targets.shape, dtype=torch.float32, device=logits.device)
    for row, wanted, out in zip(logits, targets, lost, strict=True):
        for i in range(0, len(wanted), ROWS):
            part = F.cross_entropy(
                row[i : i + ROWS].float(), wanted[i : i + ROWS], reduction="none"
            )
            out[i : i + ROWS] = part
    return lost


def pieces(
    model: nn.Module, ids: Tensor, places: Tensor | None, chunk: int, *, keep: bool = False
) -> Iterator[tuple[Tensor, Any]]:
    """The losses piece by piece, and the cache so far; a piece's last token predicts the next one.

    Args:
        model: predicts the next token.
        ids: tokens [B, N] on the device of the model.
        places: the position of every token [B, N]; None lets the model count.
        chunk: number of tokens in one forward pass.
        keep: read the last token too, and make a cache even where one piece is all.
    """
    size = chunk if takes_cache(model) else ids.shape[1]
    cache = None
    for start in range(0, ids.shape[1] - (not keep), size):
        stop = min(start + size, ids.shape[1])
        part = ids[:, start:stop]
        options = _options(ids, places, start, stop)
        if size < ids.shape[1] or (keep and takes_cache(model)):
            options |= {"use_cache": True, "past_key_values": cache}
        output = read(model, part, **options)
        cache = getattr(output, "past_key_values", None)
        logits = logits_of(output, part)
        if logits is None:
            raise UnsupportedError(f"{type(model).__name__} gives no logits of the next token")
        targets = ids[:, start + 1 : stop + 1]
        yield next_token_losses(logits[:, : targets.shape[1]], targets), cache


def _options(ids: Tensor, places: Tensor | None, start: int, stop: int) -> dict[str, Any]:
    """Positions of one piece, and a mask which says that all tokens are of one text."""
    if places is None:
        return {}
    # without a mask transformers takes a jump of the positions for the beginning of another text
    seen = torch.ones(ids.shape[0], stop, dtype=torch.long, device=ids.device)
    return {"position_ids": places[:, start:stop], "attention_mask": seen}


def _placed(model: nn.Module, positions: Tensor, ids: Tensor) -> Tensor:
    if not takes(model, "position_ids"):
        name = type(model).__name__
        raise UnsupportedError(f"positions need a model that takes position_ids, not {name}")
    if positions.shape not in (ids.shape, ids.shape[1:]):
        rule = f"of shape {list(ids.shape[1:])} or {list(ids.shape)}"
        raise ArgumentError("positions", rule, list(positions.shape))
    return positions.to(ids.device).expand(ids.shape)


def _check(tokens: Tensor, chunk: int) -> None:
    if tokens.ndim != 2 or tokens.shape[1] < 2 or tokens.is_floating_point():
        found = f"{tokens.dtype} {list(tokens.shape)}"
        raise ArgumentError("tokens", "integers [B, N] with N at least 2", found)
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
        raise ArgumentError("chunk", "an integer >= 1", repr(chunk))
