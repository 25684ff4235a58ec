"""Two probes of a model past its trained length: larger distances, and more keys.

A long text has both. The distance probe reads short windows whose second half stands far away: no
more keys, larger distances. The number probe reads long windows whose positions stay in the
trained range: more keys, no larger distances. A model that takes no positions gets thinned windows
in place of the second: distances as in the long text, no more keys than in training.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.core.masks.kinds import lookback, prefix, strided
from attentropy.distributed.team import ALONE, Team
from attentropy.models.losses.cause import Gap
from attentropy.models.losses.lockstep import in_step
from attentropy.models.losses.paired import Paired, paired, stretches
from attentropy.models.losses.reading import takes
from attentropy.models.losses.tokens import token_losses
from attentropy.models.steer.steer import steer

WINDOW, WINDOWS = 1024, 8


def position_limit(model: nn.Module) -> int | None:
    """The number of positions that the model has; None if it computes them.

    Args:
        model: the model.
    """
    own = getattr(model, "maximum_length", None)
    if isinstance(own, int):
        return own
    tables = [
        module.num_embeddings - _offset(module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
        and ("position" in name or name.endswith("wpe"))
        and "relative" not in name
    ]
    return min(tables, default=None)


def _offset(module: nn.Embedding) -> int:
    """Positions that a table keeps for itself (OPT and BART 2, RoBERTa padding + 1)."""
    offset = getattr(module, "offset", None)
    if isinstance(offset, int):
        return offset
    return 0 if module.padding_idx is None else module.padding_idx + 1


def no_distance(model: nn.Module) -> str | None:
    """Why the distance probe does not exist for a model; None if it does.

    Args:
        model: the model.
    """
    if position_limit(model) is not None:
        return "its positions are a table that ends with the trained length"
    if not takes(model, "position_ids"):
        return (
            "the model takes no position_ids: distances follow from the order of the tokens alone"
        )
    return None


def no_clipping(model: nn.Module) -> str | None:
    """Why the number probe cannot clip positions; None if it can.

    Args:
        model: the model.
    """
    if not takes(model, "position_ids"):
        return "the model takes no position_ids, so keys are left out instead"
    return None


def windows_of(tokens: Tensor, size: int, count: int = WINDOWS) -> Tensor:
    """The first `count` windows of `size` tokens, [W, size].

    Args:
        tokens: ids [N] or [B, N].
        size: tokens of a window.
        count: the most windows.
    """
    rows = tokens if tokens.ndim == 2 else tokens[None]
    whole = rows.shape[1] // size * size
    if not whole:
        raise ArgumentError("tokens", f"at least {size} in a row", rows.shape[1])
    return rows[:, :whole].reshape(-1, size)[:count]


def default_gaps(trained: int, window: int) -> list[int]:
    """Gaps after which the second half of a window begins at 1 1/8, 1 3/8 and 2 trained lengths.

    Args:
        trained: the trained length.
        window: tokens of a window.
    """
    half = window // 2
    return [trained * eighths // 8 - half for eighths in (9, 11, 16)]


def distance_probe(
    model: nn.Module,
    tokens: Tensor,
    *,
    trained: int,
    gaps: Sequence[int] | None = None,
    window: int | None = None,
    windows: int = WINDOWS,
    team: Team = ALONE,
) -> list[Gap]:
    """Short windows whose positions jump by a gap: no more keys, larger distances.

    The loss of the second halves is compared with that of the widest gap inside the trained
    range, because distant context helps less even where the model knows the distance.

    Args:
        model: a causal model that takes `position_ids`.
        tokens: ids [N] or [B, N], of which short windows are cut.
        trained: the trained length.
        gaps: numbers of positions left out; by default the second half begins at 1 1/8, 1 3/8 and
            2 times the trained length.
        window: tokens of a window; 1,024 by default, half of the trained length if that is less.
        windows: the most windows that are read.
        team: processes that share the gaps out; each has the model and all arguments.
    """
    why = no_distance(model)
    if why is not None:
        raise UnsupportedError(f"{type(model).__name__} has no distance probe: {why}")
    size = min(WINDOW, trained // 2) if window is None else window
    if not 4 <= size <= trained:
        raise ArgumentError("window", f"between 4 and the trained length {trained}", size)
    rows = windows_of(tokens, size, windows)
    wanted = default_gaps(trained, size) if gaps is None else list(gaps)
    home, *far = team.map(
        lambda gap: jumped_losses(model, rows, gap).cpu(),
        [trained - size, *wanted],
        run=in_step(model, tokens=lambda gap: rows.numel()),
    )
    return [
        Gap(gap=gap, farthest=size - 1 + gap, change=_change(home, losses))
        for gap, losses in zip(wanted, far, strict=True)
    ]


def jumped_losses(model: nn.Module, rows: Tensor, gap: int) -> Tensor:
    """Token losses [W, half] of the second halves, which stand `gap` positions further away.

    Args:
        model: a causal model that takes `position_ids`.
        rows: windows [W, n].
        gap: the number of positions left out in the middle of a window.
    """
    half = rows.shape[1] // 2
    return token_losses(model, rows, positions=jumped_positions(rows.shape[1], gap))[:, half:]


def jumped_positions(length: int, gap: int) -> Tensor:
    """Positions of a short window whose second half stands `gap` positions further away.

    Args:
        length: tokens of the window.
        gap: the number of positions left out in the middle.

    >>> jumped_positions(4, 10)
    tensor([ 0,  1, 12, 13])
    """
    places = torch.arange(length)
    return places + gap * (places >= length // 2)


def clipped_positions(length: int, trained: int) -> Tensor:
    """Positions of a long window inside the trained range: the oldest tokens share position 0.

    The last `trained` tokens have the positions that they would have alone.

    Args:
        length: tokens of the window.
        trained: the trained length.

    >>> clipped_positions(6, 4)
    tensor([0, 0, 0, 1, 2, 3])
    """
    return (torch.arange(length) - (length - trained)).clamp(min=0)


def number_probe(
    model: nn.Module, tokens: Tensor, *, trained: int, last: int, chunk: int = 1024
) -> Tensor:
    """Losses [B, last] of the last tokens of long windows with positions in the trained range.

    More keys than in training, no larger distances. Compare them with `truncated_losses` of the
    same tokens.

    Args:
        model: a causal model that takes `position_ids`.
        tokens: ids [B, N], N beyond the trained length.
        trained: the trained length.
        last: number of tokens at the end whose loss is asked for; at most half of `trained`, so
            that each has at least half of the trained range behind it.
        chunk: number of tokens in one forward pass.
    """
    why = no_clipping(model)
    if why is not None:
        raise UnsupportedError(f"{type(model).__name__} has no clipped positions: {why}")
    places = clipped_positions(tokens.shape[1], trained)
    return token_losses(model, tokens, positions=places, chunk=chunk)[:, -last:]


def thinned_probe(model: nn.Module, tokens: Tensor, *, trained: int, last: int) -> Tensor:
    """Losses [B, last] of the last tokens of long windows in which far keys are thinned out.

    Distances as in the long text, no more keys than in training: each row sees the nearest half of
    the trained length, the first key, and every k-th key before.

    Args:
        model: a causal model that `steer` can change.
        tokens: ids [B, N], N beyond the trained length.
        trained: the trained length.
        last: number of tokens at the end whose loss is asked for.
    """
    near = max(1, trained // 2)
    step = -(-(tokens.shape[1] - near) // max(1, trained - near - 1))
    handle = steer(model, mask=lookback(near) | prefix(1) | strided(step))
    try:
        found = token_losses(model, tokens, chunk=tokens.shape[1])[:, -last:]
        handle.require()
        return found
    finally:
        handle.undo()


def _change(before: Tensor, after: Tensor) -> Paired:
    """Over windows; over stretches of them where there are fewer than four."""
    if len(before) < 4:
        before, after = stretches(before), stretches(after)
    return paired(before, after)
