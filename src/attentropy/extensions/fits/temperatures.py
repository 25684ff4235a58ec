"""Temperatures by loss: one for all heads, and one for each, with entropy as the starting point."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import torch
from torch import Tensor, nn

from attentropy.extensions.candidates import Setting, plan_of
from attentropy.extensions.screening import Probe
from attentropy.models.factors import next_factors, solved
from attentropy.models.intercept.candidates import device_of
from attentropy.models.losses.reading import logits_of, read
from attentropy.models.record.curves import Curve, CurveWatch, Search, no_search
from attentropy.models.rope.settings import WITH_TEMPERATURE
from attentropy.models.steer.steer import steer

STEP = 0.08  # of log factor, between the three points of a parabola
MOST = 0.4  # log factor at most
STEPS, RATE = 8, 0.03  # of the fit per head


def tempered(candidate: Setting, factor: float, name: str) -> Setting:
    """The candidate with the logits of all heads multiplied by one more factor.

    Where possible the config stores the factor: its attention_factor multiplies queries and keys.

    Args:
        candidate: gets the factor.
        factor: on the logits.
        name: of the result.
    """
    rope = candidate.rope
    if rope is not None and rope.rope_type in WITH_TEMPERATURE and rope.attention_factor:
        own = rope.attention_factor * math.sqrt(factor)
        rope = msgspec.structs.replace(rope, attention_factor=own)
        return msgspec.structs.replace(candidate, rope=rope, name=name)
    return msgspec.structs.replace(candidate, factor=candidate.factor * factor, name=name)


def one_for_all(candidate: Setting, model: nn.Module, probe: Probe, *, start: float) -> Setting:
    """The factor with the least loss: of `start`, 1, and the vertex of a parabola through three.

    Args:
        candidate: gets the factor.
        model: the model.
        probe: on calibration text.
        start: a factor to begin with, such as the one that holds the entropy.
    """

    def loss(log_factor: float) -> float:
        there = tempered(candidate, math.exp(log_factor), candidate.name)
        return float(probe.of_candidate(there, model).mean())

    known = {x: loss(x) for x in (-STEP, 0.0, STEP)}
    low, mid, high = known.values()
    bend = low - 2 * mid + high
    vertex = 0.5 * STEP * (low - high) / bend if bend > 0 else math.copysign(2 * STEP, low - high)
    for x in (_within(vertex), _within(math.log(start))):
        if x not in known:
            known[x] = loss(x)
    best = min(known, key=known.__getitem__)
    return tempered(candidate, math.exp(best), f"{candidate.name}, fitted temperature")


def _within(x: float) -> float:
    return max(-MOST, min(MOST, x))


def entropy_held(candidate: Setting, model: nn.Module, probe: Probe) -> Setting:
    """Factors that give each head the entropy it has inside the trained range.

    Args:
        candidate: gets the factors.
        model: the model.
        probe: on calibration text.
    """
    inside = _curves(model, probe.inside(), no_search)
    goals = {layer: curve.mean()[:, 0] for layer, curve in inside.items()}

    def search(layer: str, curve: Curve) -> Tensor | None:
        return next_factors(curve, goals[layer]) if layer in goals else None

    handle = steer(model, plan_of(candidate, probe.task), mask=candidate.mask)
    try:
        curves = _curves(model, probe, search)
    finally:
        handle.undo()
    heads = {
        layer: tuple(factor or 1.0 for factor in solved(curve, goals[layer]))
        for layer, curve in curves.items()
        if layer in goals
    }
    kept = {layer: heads.get(layer, (1.0,) * n) for layer, n in probe.task.layers.items()}
    name = f"{candidate.name}, entropy held"
    return msgspec.structs.replace(candidate, heads=kept, name=name)


def typical(heads: dict[str, tuple[float, ...]]) -> float:
    """The geometric mean of the factors of all heads.

    Args:
        heads: factors by layer.
    """
    logs = [math.log(f) for layer in heads.values() for f in layer]
    return math.exp(sum(logs) / len(logs))


def one_per_head(
    candidate: Setting,
    model: nn.Module,
    probe: Probe,
    *,
    name: str,
    tell: Callable[[str], object] = lambda text: None,
) -> Setting:
    """Factors of all heads by gradient descent on the loss of the probe's windows.

    Args:
        candidate: gets the factors; its own factors of heads are the starting point.
        model: the model; its weights do not change.
        probe: on calibration text.
        name: of the result.
        tell: receives the step.
    """
    layers = probe.task.layers
    before = candidate.heads or {layer: (1.0,) * n for layer, n in layers.items()}
    logs = {layer: torch.tensor(before[layer]).log().requires_grad_() for layer in layers}
    bare = msgspec.structs.replace(candidate, heads=None)
    optimizer = torch.optim.Adam(logs.values(), lr=RATE)
    with frozen(model):
        for step in range(STEPS):
            tell(f"{name}, step {step + 1} of {STEPS}")
            row = probe.rows[step % len(probe.rows)][None]
            optimizer.zero_grad()
            _loss(bare, model, probe.on(row), logs).backward()
            optimizer.step()
    heads = {layer: tuple(log.detach().exp().tolist()) for layer, log in logs.items()}
    return msgspec.structs.replace(candidate, heads=heads, name=name)


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """No parameter of the model asks for a gradient inside the block.

    Args:
        model: the model.
    """
    learning = {p: p.requires_grad for p in model.parameters()}
    model.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, asked in learning.items():
            parameter.requires_grad_(asked)


def _loss(candidate: Setting, model: nn.Module, probe: Probe, logs: dict[str, Tensor]) -> Tensor:
    """The mean loss of a probe with gradients for log factors of heads."""
    temperature = {name: (-log).exp() for name, log in logs.items()}
    plan = plan_of(candidate, probe.task)
    handle = steer(model, plan, temperature=temperature, mask=candidate.mask)
    try:
        ids = probe.rows.to(device_of(model))
        logits = logits_of(read(model, ids, **probe.placed(model)), ids)
        assert logits is not None
        scores, wanted = logits[:, -probe.last - 1 : -1], ids[:, -probe.last :]
        handle.require()
        return nn.functional.cross_entropy(scores.float().flatten(0, 1), wanted.flatten())
    finally:
        handle.undo()


def _curves(model: nn.Module, probe: Probe, search: Search) -> dict[str, Curve]:
    with CurveWatch(model, search) as watch:
        probe.losses(model)
    return watch.curves
