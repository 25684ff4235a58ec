"""calibrate(): which scale keeps each head's entropy as the input grows beyond the trained length?

    plan = at.calibrate(model, batches, lengths=[512, 1024, 4096])
    print(plan.table())
    handle = at.steer(model, plan)

The entropy of each head at the first length is the goal. At every longer one the factor on the
head's scale is solved for that gives it: from the head's own scores ("empirical"), or for
Gaussian scores of the spread that explains its entropy ("gaussian"). Then the steered model is
measured again, and the plan carries what came out.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.models.plan import HOLDS, METHODS, Effect, Hold, Method, Plan
from attentropy.models.record.curves import FACTORS, Curve, CurveWatch
from attentropy.models.steer.steer import steer

Batch = Mapping[str, Any] | Tensor
Loss = Callable[[Any, Any], tuple[float, int]]


def calibrate(
    model: nn.Module,
    batches: Iterable[Batch],
    lengths: Sequence[int],
    *,
    hold: Hold = "entropy",
    method: Method = "empirical",
    loss: Loss | None = None,
) -> Plan:
    """Factors that hold each head's entropy of the first length at the others, and their effect.

    Args:
        model: a model that steer() can change; parts of which it cannot are warned of by name and
            not in the plan.
        batches: what the model is called with: mappings with "input_ids" (or another tensor of
            shape [B,N,...] first), or tensors; each at least as long as the longest length.
        lengths: increasing; the first is the length that the model was trained at.
        hold: "entropy" H, or "normalized" H / log n.
        method: "empirical" or "gaussian".
        loss: (output, batch) -> (sum of negative log-likelihoods, tokens); by default that of the
            next token where the output has `logits` for `input_ids`.
    """
    batches = _check(model, batches, lengths, hold=hold, method=method)
    trial = _Trial(model, batches, _next_token if loss is None else loss)
    handle = steer(model, temperature=1.0)  # refuses at once what cannot be steered
    try:
        first = trial.measure(lengths[0], FACTORS)
    finally:
        handle.undo()
    before = [first, *(trial.measure(length, FACTORS) for length in lengths[1:])]
    solved = _solve(before, hold=hold, method=method)
    home = before[0].curves
    one = FACTORS.index(1.0)
    plan = Plan(
        model=type(model).__name__,
        reference=lengths[0],
        hold=hold,
        method=method,
        lengths=tuple(lengths),
        factors=solved.factors,
        entropy={name: _finite(curve.mean()[:, one]) for name, curve in home.items()},
        spread={name: _finite(curve.spread / curve.rows) for name, curve in home.items()},
        unheld=solved.unheld,
    )
    handle = steer(model, plan)
    try:
        after = [trial.measure(length, (1.0,)) for length in lengths]
    finally:
        handle.undo()
    effects = (
        Effect(
            length=length,
            entropy_before=b.entropy(one),
            entropy_after=a.entropy(0),
            perplexity_before=b.perplexity,
            perplexity_after=a.perplexity,
        )
        for length, b, a in zip(lengths, before, after, strict=True)
    )
    return msgspec.structs.replace(plan, effects=tuple(effects))


def _finite(values: Tensor) -> tuple[float | None, ...]:
    """The numbers, None in place of what is not finite."""
    return tuple(x if math.isfinite(x) else None for x in values.tolist())


@dataclass(frozen=True)
class _Measured:
    """Curves and perplexity at one length."""

    curves: dict[str, Curve]
    perplexity: float | None

    def entropy(self, factor: int) -> float | None:
        """The mean over all heads, with one of the factors on their scale."""
        heads = torch.cat([curve.mean()[:, factor] for curve in self.curves.values()])
        return _finite(heads.mean()[None])[0]


@dataclass(frozen=True)
class _Trial:
    model: nn.Module
    batches: list[Any]
    loss: Loss

    @torch.no_grad()
    def measure(self, length: int, factors: tuple[float, ...]) -> _Measured:
        """Run every batch, cut to a length, and measure."""
        training = self.model.training
        self.model.eval()
        total, tokens = 0.0, 0
        try:
            with CurveWatch(self.model, factors) as watch:
                for batch in self.batches:
                    part = _cut(batch, length)
                    output = self.model(**part) if isinstance(part, Mapping) else self.model(part)
                    nll, count = self.loss(output, part)
                    total, tokens = total + nll, tokens + count
        finally:
            self.model.train(training)
        return _Measured(watch.curves, math.exp(total / tokens) if tokens else None)


def _next_token(output: Any, batch: Any) -> tuple[float, int]:
    """Negative log-likelihood of each next token; nothing where there are no logits for tokens."""
    ids: Any = batch.get("input_ids") if isinstance(batch, Mapping) else batch
    logits: Any = getattr(output, "logits", None)
    if not isinstance(ids, Tensor) or not isinstance(logits, Tensor) or logits.dim() != 3:
        return 0.0, 0
    if logits.shape[:2] != ids.shape or ids.shape[1] < 2:
        return 0.0, 0
    target = ids[:, 1:]
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if mask is not None:
        target = target.masked_fill(mask[:, 1:] == 0, -100)
    flat = logits[:, :-1].float().flatten(0, 1)
    nll = F.cross_entropy(flat, target.flatten(), ignore_index=-100, reduction="sum")
    return float(nll), int((target != -100).sum())


@dataclass(frozen=True)
class _Solved:
    factors: dict[str, tuple[tuple[float, ...], ...]]
    unheld: tuple[tuple[str, int], ...]


def _solve(measured: list[_Measured], *, hold: str, method: str) -> _Solved:
    """Factors of every head at every length; 1 where none holds the entropy."""
    solve = _empirical if method == "empirical" else _gaussian
    factors: dict[str, tuple[tuple[float, ...], ...]] = {}
    unheld: list[tuple[str, int]] = []
    one = FACTORS.index(1.0)
    for layer, home in measured[0].curves.items():
        curves = [m.curves[layer] for m in measured[1:]]
        goals = home.mean()[:, one].tolist()
        heads = []
        for head, goal in enumerate(goals):
            found = [
                solve(curve.mean()[head].tolist(), curve.keys, _goal(goal, home, curve, hold))
                for curve in curves
            ]
            if None in found:
                unheld.append((layer, head))
            heads.append((1.0, *(1.0 if f is None else f for f in found)))
        factors[layer] = tuple(heads)
    return _Solved(factors, tuple(unheld))


def _goal(entropy: float, home: Curve, there: Curve, hold: str) -> float:
    share = 1.0 if hold == "entropy" else math.log(there.keys) / math.log(home.keys)
    return entropy * share


def _empirical(curve: list[float], keys: float, goal: float) -> float | None:
    """The factor at which the head's own scores have the entropy `goal`; None if there is none."""
    falling = np.minimum.accumulate(np.array(curve))
    if not falling[-1] <= goal <= falling[0]:
        return None
    return float(np.exp(np.interp(-goal, -falling, np.log(FACTORS))))


def _gaussian(curve: list[float], keys: float, goal: float) -> float | None:
    """Spread that Gaussian scores need for `goal`, over the spread that explains their entropy."""
    from attentropy.theory.gaussian import scale_for_entropy

    most = math.log(keys)
    now = min(curve[FACTORS.index(1.0)], most)
    if now >= most or not 0 < goal <= most:
        return None
    factor = float(scale_for_entropy(keys, goal) / scale_for_entropy(keys, now))
    return factor if FACTORS[0] <= factor <= FACTORS[-1] else None


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
