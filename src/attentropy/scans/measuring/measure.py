"""One length: the watched model reads windows of it, and the loss of the text is measured too.

Memory is that of one forward pass: rows are folded into bins after each. Processes share the
passes; their results are added up in the order of the text.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from attentropy.core.statistics import HeadRow, by_place
from attentropy.distributed.reduce import Totals, merge
from attentropy.distributed.team import ALONE, Team
from attentropy.models.intercept import verify
from attentropy.models.intercept.candidates import device_of
from attentropy.models.losses.buckets import by_position
from attentropy.models.losses.lockstep import in_step
from attentropy.models.losses.reading import logits_of, read
from attentropy.models.losses.tokens import next_token_losses
from attentropy.models.record import reduce
from attentropy.models.record.coverage import ModuleCoverage
from attentropy.models.record.profile import Bins, Profile, merged
from attentropy.models.watch import Watch
from attentropy.scans.schema import Measure

BINS = 24  # of query positions in a profile
FEW = 16  # tokens that tell how a model calls attention


@dataclass(frozen=True)
class Reading:
    """What was measured at one length, and the loss of every token, which no file keeps.

    Attributes:
        measure: for the file.
        losses: [W, length - 1] of all windows; None if the model does not predict the next token.
        coverage: what was seen of each module with attention.
    """

    measure: Measure
    losses: Tensor | None
    coverage: list[ModuleCoverage]


@dataclass(frozen=True, eq=False)
class _WindowPass:
    """What one forward pass gives.

    Attributes:
        totals: sums and maxima of its rows, by place.
        profiles: of each place.
        sequences: number of windows.
        losses: of the next tokens, if the model predicts them.
    """

    totals: Totals
    profiles: list[Profile]
    sequences: int
    losses: Tensor | None


def measure(
    model: nn.Module,
    windows: Iterable[Tensor],
    *,
    team: Team = ALONE,
    met: set[bool] | None = None,
) -> Reading:
    """Read windows of one length with the model, and measure every head.

    Args:
        model: the model.
        windows: ids [B, n] of each forward pass, all of the same n.
        team: processes that share the passes; each has the model and the windows.
        met: the kinds of passes (True for those of one window) that were read before; new ones are
            added.
    """
    return measure_several(model, [windows], team=team, met=met)[0]


def measure_several(
    model: nn.Module,
    lengths: Iterable[Iterable[Tensor]],
    *,
    team: Team = ALONE,
    met: set[bool] | None = None,
) -> list[Reading]:
    """Read windows of several lengths; a model on disk reads all of them layer by layer.

    Args:
        model: the model.
        lengths: for each length the ids [B, n] of each forward pass.
        team: as in `measure`.
        met: as in `measure`.
    """
    began = time.perf_counter()
    todo = [(i, ids) for i, windows in enumerate(lengths) for ids in windows]
    fresh = _first_of_kind([ids for _, ids in todo], set() if met is None else met)
    with torch.no_grad(), Watch(model, keep="rows").of_all_heads() as watch:
        mine = team.share(range(len(todo)))
        if mine and mine[0] not in fresh:
            _settle(model, watch, todo[mine[0]][1])
        passes = team.map(
            lambda i: _pass(model, watch, todo[i][1], fresh=i in fresh),
            range(len(todo)),
            run=in_step(model, tokens=lambda i: todo[i][1].numel()),
        )
        seconds = time.perf_counter() - began
        both = [(one, i, ids) for one, (i, ids) in zip(passes, todo, strict=True)]
        return [
            _reading(
                watch,
                [(one, ids) for one, place, ids in both if place == i],
                seconds_per_token=seconds / sum(ids.numel() for _, ids in todo),
            )
            for i in range(todo[-1][0] + 1)
        ]


def _reading(
    watch: Watch, found: list[tuple[_WindowPass, Tensor]], *, seconds_per_token: float
) -> Reading:
    """What the passes of one length give together."""
    passes = [one for one, _ in found]
    tokens = sum(ids.numel() for _, ids in found)
    together = merge([one.totals for one in passes])
    reduce.fill(watch.recorder.owners, reduce.slots(together))
    rows = forward_rows(watch.heads())
    sizes = [one.sequences for one in passes]
    lost = [one.losses for one in passes if one.losses is not None]
    losses = torch.cat(lost) if lost and all(row.causal for row in rows) else None
    mean = None if losses is None else float(losses.double().mean())
    profiles = zip(*(one.profiles for one in passes), strict=True)
    measured = Measure(
        length=found[0][1].shape[1],
        sequences=sum(sizes),
        tokens=tokens,
        seconds=round(tokens * seconds_per_token, 4),
        rows=rows,
        profiles=[_rounded(merged(parts, sizes)) for parts in profiles],
        loss=mean,
        perplexity=None if mean is None else math.exp(min(mean, 700.0)),
        loss_by_position=[] if losses is None else by_position(losses),
    )
    return Reading(measured, losses, watch.coverage())


def _first_of_kind(windows: list[Tensor], met: set[bool]) -> set[int]:
    """Passes that are the first of one window, or of several; adds the kinds to `met`."""
    kinds = [len(ids) == 1 for ids in windows]
    new = set(kinds) - met
    met |= new
    return {kinds.index(kind) for kind in new}


def _pass(model: nn.Module, watch: Watch, window: Tensor, *, fresh: bool) -> _WindowPass:
    """One forward pass; the watch is empty again afterwards."""
    ids = window.to(device_of(model))
    output = read(model, ids) if fresh else _settled(model, watch, ids)
    logits, lost = logits_of(output, ids), None
    if logits is not None:
        lost = next_token_losses(logits[:, :-1], ids[:, 1:]).cpu()
    watch.require()
    profiles = [one for one in watch.profiles(BINS) if one.phase == "forward"]
    found = _WindowPass(reduce.totals(watch.recorder.owners), profiles, len(ids), lost)
    watch.clear()
    return found


def _settle(model: nn.Module, watch: Watch, ids: Tensor) -> None:
    """Read a few tokens if no call was compared yet, before a pass that is not the first."""
    if not verify.count(model):
        read(model, ids[:2, :FEW].to(device_of(model)))
        watch.clear()


def _settled(model: nn.Module, watch: Watch, ids: Tensor) -> Any:
    """The output of a pass in which no call was compared with the model's own function.

    That function serves the calls that are compared. In one process this happens in the first pass
    of a kind, so that the others must not depend on which process reads them: a pass that makes
    new kinds of calls is repeated.
    """
    before = verify.given()
    output = read(model, ids)
    if verify.given() > before:
        watch.clear()
        output = read(model, ids)
    return output


def forward_rows(rows: Iterable[HeadRow]) -> list[HeadRow]:
    """The rows of forward passes, their places numbered from 0."""
    places = by_place(row for row in rows if row.phase == "forward")
    return [
        msgspec.structs.replace(row, index=index)
        for index, heads in enumerate(places)
        for row in heads
    ]


def _rounded(profile: Profile) -> Profile:
    """Curves to five significant digits: there are many of them in a file."""

    def short(curve: Bins) -> Bins:
        return [None if value is None else float(f"{value:.5g}") for value in curve]

    return msgspec.structs.replace(
        profile,
        visible=short(profile.visible),
        entropy=[short(curve) for curve in profile.entropy],
        distance=[short(curve) for curve in profile.distance],
    )
