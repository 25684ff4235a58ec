"""calibrate(): which scale keeps each head's entropy as the input grows beyond the trained length?

    plan = at.calibrate(model, batches, lengths=[512, 1024, 4096])
    print(plan.table())
    handle = at.steer(model, plan)

The target is the entropy of each head at the first length. For every longer length, calibrate()
finds the factor on the head's scale that gives this entropy: from the head's own scores
("empirical"), or from Gaussian scores with a spread that explains its entropy ("gaussian"). Then it
measures the steered model again, and the plan stores the results: entropies, perplexities, and the
loss at the end of the longest text, next to the losses of the untouched model and of truncation.
`plan.helps` says whether the plan is useful: holding the entropy is not a goal in itself.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from attentropy.distributed.team import ALONE, Team
from attentropy.models.factors import LEAST, MOST, next_factors, solved
from attentropy.models.intercept import verify
from attentropy.models.losses.breaking import LAST
from attentropy.models.losses.paired import paired, stretches
from attentropy.models.losses.reading import logits_of
from attentropy.models.losses.tokens import (
    each_row,
    next_token_losses,
    token_losses,
    truncated_losses,
)
from attentropy.models.plan import HOLDS, METHODS, Effect, Hold, Judged, Method, Plan
from attentropy.models.record.curves import Curve, CurveWatch, Search, no_search
from attentropy.models.steer.steer import steer
from attentropy.models.tensor_parallel import team_for
from attentropy.models.watch import watch

Batch = Mapping[str, Any] | Tensor
Loss = Callable[[Any, Any], tuple[float, int]]
SHORT = 16  # tokens that show whether a model is causal


def calibrate(
    model: nn.Module,
    batches: Iterable[Batch],
    lengths: Sequence[int],
    *,
    hold: Hold = "entropy",
    method: Method = "empirical",
    loss: Loss | None = None,
    team: Team = ALONE,
) -> Plan:
    """Factors that hold each head's entropy of the first length at the others, and their effect.

    Args:
        model: a model that steer() can change. A warning names the parts that it cannot change;
            they are not in the plan.
        batches: what the model is called with: mappings with "input_ids" (or another tensor of
            shape [B,N,...] first), or tensors; each at least as long as the longest length.
        lengths: increasing; the first is the length that the model was trained at.
        hold: "entropy" H, or "normalized" H / log n.
        method: "empirical" or "gaussian".
        loss: (output, batch) -> (sum of negative log-likelihoods, tokens); by default that of the
            next token where the output has `logits` for `input_ids` and no token sees later ones.
            With a loss of your own the plan is not judged.
        team: processes that share batches out; each has the model and all arguments. None for a
            model whose heads processes share (tensor parallelism): each process calls calibrate().

    A quarter of the rows, the last ones, are kept out of the plan to judge it (`plan.judged`); if
    there are fewer than four, the same rows serve both.
    """
    given = _check(model, batches, lengths, hold=hold, method=method)
    team = team_for(model, team)
    batches, held = _split(given)
    predicts = loss is None and _is_causal(model, _cut(batches[0], min(SHORT, lengths[0])))
    own = _next_token if predicts else _nothing
    trial = _Trial(model, batches, own if loss is None else loss)
    handle = steer(model, temperature=1.0)  # refuses at once what cannot be steered
    try:
        (first,) = trial.measure(lengths[:1], team=team)
        handle.require()
    finally:
        handle.undo()
    search = _search(first, hold=hold) if method == "empirical" else no_search
    before = [first, *trial.measure(lengths[1:], search, team=team)]
    solved = _solve(before, hold=hold, method=method)
    home = before[0].curves
    plan = Plan(
        model=type(model).__name__,
        reference=lengths[0],
        hold=hold,
        method=method,
        lengths=tuple(lengths),
        factors=solved.factors,
        entropy={name: _finite(curve.mean()[:, 0]) for name, curve in home.items()},
        spread={name: _finite(curve.spread / curve.rows) for name, curve in home.items()},
        unheld=solved.unheld,
    )
    handle = steer(model, plan)
    try:
        after = trial.measure(lengths, team=team)
    finally:
        handle.undo()
    effects = (
        Effect(
            length=length,
            entropy_before=b.entropy(),
            entropy_after=a.entropy(),
            perplexity_before=b.perplexity,
            perplexity_after=a.perplexity,
        )
        for length, b, a in zip(lengths, before, after, strict=True)
    )
    done = msgspec.structs.replace(plan, effects=tuple(effects))
    if not predicts:
        return done
    judged = _judged(model, done, _plain_ids(held or batches), held_out=bool(held), team=team)
    return msgspec.structs.replace(done, judged=judged)


def _split(batches: list[Any]) -> tuple[list[Any], list[Any]]:
    """Rows to make the plan from, and the last quarter to judge it."""
    sizes = [_rows(batch) for batch in batches]
    left = sum(sizes) // 4
    kept: list[Any] = []
    held: list[Any] = []
    for batch, size in zip(reversed(batches), reversed(sizes), strict=True):
        out = min(left, size)
        left -= out
        if out:
            held.insert(0, _part(batch, slice(size - out, size)))
        if out < size:
            kept.insert(0, _part(batch, slice(0, size - out)))
    return kept, held


def _rows(batch: Batch) -> int:
    tensors = batch.values() if isinstance(batch, Mapping) else [batch]
    return next((len(x) for x in tensors if isinstance(x, Tensor) and x.dim() > 1), 1)


def _part(batch: Batch, rows: slice) -> Any:
    if isinstance(batch, Tensor):
        return batch[rows]
    size = _rows(batch)
    along = {k: isinstance(v, Tensor) and v.dim() > 0 and len(v) == size for k, v in batch.items()}
    return {name: value[rows] if along[name] else value for name, value in batch.items()}


def _plain_ids(batches: list[Any]) -> list[Tensor]:
    """The ids of batches that are nothing but text without padding; none if any is more."""
    found = []
    for batch in batches:
        more = set(batch) - {"input_ids", "attention_mask", "labels"} if _named(batch) else ()
        ids = batch.get("input_ids") if _named(batch) else batch
        mask = batch.get("attention_mask") if _named(batch) else None
        padded = mask is not None and not bool((mask != 0).all())
        if more or padded or not isinstance(ids, Tensor) or ids.dim() != 2:
            return []
        found.append(ids)
    return [] if any(ids.is_floating_point() for ids in found) else found


def _named(batch: Any) -> bool:
    return isinstance(batch, Mapping)


def _judged(
    model: nn.Module, plan: Plan, texts: list[Tensor], *, held_out: bool, team: Team
) -> Judged | None:
    """The loss at the end of the longest texts: untouched, truncated, and with the plan."""
    length, trained = plan.lengths[-1], plan.reference
    if not texts:
        return None
    rows = torch.cat([ids[:, :length] for ids in texts])
    last = min(LAST, length - trained)
    training = model.training
    model.eval()
    try:
        whole = each_row(model, lambda row: token_losses(model, row)[:, -last:], rows, team=team)
        cut = each_row(
            model,
            lambda row: truncated_losses(model, row, trained=trained, last=last),
            rows,
            team=team,
        )
        handle = steer(model, plan)
        try:
            after = each_row(
                model, lambda row: token_losses(model, row)[:, -last:], rows, team=team
            )
        finally:
            handle.undo()
    except UnsupportedError:  # nothing is predicted
        return None
    finally:
        model.train(training)
    before, between, planned = (stretches(part) for part in (whole, cut, after))
    return Judged(
        length=length,
        last=last,
        held_out=held_out,
        change=paired(before, planned),
        truncation=paired(between, planned),
    )


def _finite(values: Tensor) -> tuple[float | None, ...]:
    """The numbers, None in place of what is not finite."""
    return tuple(x if math.isfinite(x) else None for x in values.tolist())


@dataclass(frozen=True)
class _Measured:
    """Curves and perplexity at one length."""

    curves: dict[str, Curve]
    perplexity: float | None

    def entropy(self) -> float | None:
        """The mean over all heads."""
        heads = torch.cat([curve.mean()[:, 0] for curve in self.curves.values()])
        return _finite(heads.mean()[None])[0]


@dataclass(frozen=True)
class _Trial:
    model: nn.Module
    batches: list[Any]
    loss: Loss

    def measure(
        self, lengths: Sequence[int], search: Search = no_search, *, team: Team
    ) -> list[_Measured]:
        """Read every batch, cut to each length.

        The first batch decides at which factors curves are measured, as `search` asks for them;
        processes share the others.
        """
        training = self.model.training
        self.model.eval()
        try:
            first, *more = self.batches
            begun = team.map(lambda length: self._read(first, length, search), lengths)
            todo = [(i, batch) for i in range(len(lengths)) for batch in more]
            others = team.map(
                lambda one: self._read(one[1], lengths[one[0]], _same_factors(begun[one[0]])), todo
            )
        finally:
            self.model.train(training)
        each = len(more)
        return [_joined([one, *others[i * each : (i + 1) * each]]) for i, one in enumerate(begun)]

    def _read(self, batch: Any, length: int, search: Search) -> "_BatchCurves":
        """One batch; again if calls were compared, which the model's own function served."""
        before = verify.given()
        found = self._watched(batch, length, search)
        return found if verify.given() == before else self._watched(batch, length, search)

    @torch.no_grad()
    def _watched(self, batch: Any, length: int, search: Search) -> "_BatchCurves":
        part = _cut(batch, length)
        with CurveWatch(self.model, search) as watch:
            output = self.model(**part) if isinstance(part, Mapping) else self.model(part)
        return _BatchCurves(watch.curves, *self.loss(output, part))


@dataclass(frozen=True)
class _BatchCurves:
    """Curves of one batch, its negative log-likelihood and its number of tokens."""

    curves: dict[str, Curve]
    lost: float
    tokens: int


def _same_factors(begun: _BatchCurves) -> Search:
    """Asks for the factors at which another batch was measured."""

    def search(layer: str, curve: Curve) -> Tensor | None:
        known, done = begun.curves.get(layer), curve.factors.shape[1]
        return None if known is None or done == known.factors.shape[1] else known.factors[:, done]

    return search


def _joined(parts: Sequence[_BatchCurves]) -> _Measured:
    """What batches give together, added up in their order."""
    curves: dict[str, Curve] = {}
    for part in parts:
        for name, curve in part.curves.items():
            curves[name] = curves[name].plus(curve) if name in curves else curve
    lost, tokens = sum(part.lost for part in parts), sum(part.tokens for part in parts)
    return _Measured(curves, math.exp(lost / tokens) if tokens else None)


@torch.no_grad()
def _is_causal(model: nn.Module, batch: Any) -> bool:
    """True if no attention of the model sees a key after its query, so that it can predict."""
    with watch(model) as seen:
        _ = model(**batch) if isinstance(batch, Mapping) else model(batch)
    return all(row.causal for row in seen.heads())


def _nothing(output: Any, batch: Any) -> tuple[float, int]:
    """The loss of a model that sees the tokens that it would predict: there is none."""
    return 0.0, 0


def _next_token(output: Any, batch: Any) -> tuple[float, int]:
    """Negative log-likelihood of each next token; nothing where there are no logits for tokens."""
    ids: Any = batch.get("input_ids") if isinstance(batch, Mapping) else batch
    if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point():
        return 0.0, 0
    logits = logits_of(output, ids)
    if logits is None or ids.shape[1] < 2:
        return 0.0, 0
    target = ids[:, 1:]
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if mask is not None:
        target = target.masked_fill(mask[:, 1:] == 0, -100)
    losses = next_token_losses(logits[:, :-1], target)
    return float(losses.double().sum()), int((target != -100).sum())


@dataclass(frozen=True)
class _Solved:
    factors: dict[str, tuple[tuple[float, ...], ...]]
    unheld: tuple[tuple[str, int], ...]


def _solve(measured: list[_Measured], *, hold: str, method: str) -> _Solved:
    """Factors of every head at every length; 1 where none holds the entropy."""
    solve = solved if method == "empirical" else _gaussian
    factors: dict[str, tuple[tuple[float, ...], ...]] = {}
    unheld: list[tuple[str, int]] = []
    for layer, home in measured[0].curves.items():
        curves = [m.curves[layer] for m in measured[1:]]
        found = [solve(curve, _goal(home, curve, hold)) for curve in curves]
        heads = list(zip(*found, strict=True))
        unheld += [(layer, head) for head, row in enumerate(heads) if None in row]
        factors[layer] = tuple((1.0, *(1.0 if f is None else f for f in row)) for row in heads)
    return _Solved(factors, tuple(unheld))


def _search(first: _Measured, *, hold: str) -> Search:
    """Looks for the factors that hold the entropy of the first length."""

    def search(layer: str, curve: Curve) -> Tensor | None:
        home = first.curves.get(layer)
        return None if home is None else next_factors(curve, _goal(home, curve, hold))

    return search


def _goal(home: Curve, there: Curve, hold: str) -> Tensor:
    """The entropy that each head is to have, [H]."""
    share = 1.0 if hold == "entropy" else math.log(there.keys) / math.log(home.keys)
    return home.mean()[:, 0] * share


def _gaussian(curve: Curve, goals: Tensor) -> list[float | None]:
    """Spread that Gaussian scores need for the goal, over that which explains their entropy."""
    from attentropy.theory.gaussian import scale_for_entropy

    def factor(now: float, goal: float) -> float | None:
        if now >= most or not 0 < goal <= most:
            return None
        found = float(scale_for_entropy(curve.keys, goal) / scale_for_entropy(curve.keys, now))
        return found if LEAST <= found <= MOST else None

    most = math.log(curve.keys)
    return [factor(*pair) for pair in zip(curve.mean()[:, 0].tolist(), goals.tolist(), strict=True)]


def _cut(batch: Batch, length: int) -> Any:
    """The first `length` positions of every tensor that runs along the sequence."""
    if isinstance(batch, Tensor):
        return batch[:, :length]
    whole = _length(batch)
    return {
        name: value[:, :length] if _runs_along(value, whole) else value
        for name, value in batch.items()
        if name != "labels"
    }


def _runs_along(value: Any, length: int) -> bool:
    return isinstance(value, Tensor) and value.dim() > 1 and value.shape[1] == length


def _length(batch: Batch) -> int:
    if isinstance(batch, Tensor):
        return batch.shape[1]
    ids = batch.get("input_ids")
    tensors = [ids] if isinstance(ids, Tensor) else list(batch.values())
    return next((x.shape[1] for x in tensors if isinstance(x, Tensor) and x.dim() > 1), 0)


def _check(
    model: Any, batches: Any, lengths: Sequence[int], *, hold: str, method: str
) -> list[Any]:
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError("model", "a torch.nn.Module", type(model).__name__)
    if hold not in HOLDS:
        raise ArgumentError("hold", f"one of {HOLDS}", repr(hold))
    if method not in METHODS:
        raise ArgumentError("method", f"one of {METHODS}", repr(method))
    whole = all(isinstance(n, int) and n >= 2 for n in lengths)
    if len(lengths) < 2 or not whole or not all(a < b for a, b in pairwise(lengths)):
        raise ArgumentError("lengths", "two or more increasing integers >= 2", list(lengths))
    kept = [batches] if isinstance(batches, Mapping | Tensor) else list(batches)
    if not kept:
        raise ArgumentError("batches", "at least one batch", kept)
    for batch in kept:
        if not isinstance(batch, Mapping) and not (isinstance(batch, Tensor) and batch.dim() > 1):
            got = list(batch.shape) if isinstance(batch, Tensor) else type(batch).__name__
            raise ArgumentError("batches", "mappings, or tensors [B,N,...]", got)
    shortest = min(_length(batch) for batch in kept)
    if shortest < lengths[-1]:
        rule = f"at least as long as the longest length {lengths[-1]}"
        raise ArgumentError("batches", rule, f"one of length {shortest}")
    return kept
