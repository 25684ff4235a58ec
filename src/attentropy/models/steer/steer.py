"""steer(): change the attention of an existing model, until the change is undone.

    handle = at.steer(model, scale=at.LogLengthFrom(2048))
    model.generate(...)
    handle.undo()

The change is persistent and never tied to a `with` block: activation checkpointing recomputes
attention in the backward pass, and would then use the unchanged attention. Copies and pickles of a
steered model stay steered; call undo() before copying to get one that is not.

Attention that a model computes by hand is changed at its softmax. There only the whole logit is
known: `temperature`, plans, rules that multiply the model's scale (LogLengthFrom, HoldEntropy,
PowerLength, StepLog), `softcap` and `mask` act; `qk_norm`, `weights` and other scales, InfoScale
among them, do not.

A bias of the model (ALiBi in BLOOM, relative positions in T5 and SAM) is part of the logit:
temperature, plans and such rules multiply it like the scores, and also a model's softcap and sink,
wherever the model computes them. A scale that replaces the model's own multiplies the scores alone.
In calls of attend() the scale changes, and a bias, a softcap and a sink stay.

Where a change cannot act, the model's own function answers. One warning after the forward pass
names such modules with the reason; `handle.left_alone` and `handle.coverage()` have them too, and
`handle.require()` raises if nothing is changed. context_parallel alone raises in a forward pass: a
rank has only some of the keys, so that the model's own function has no answer.
"""

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from attentropy.core.masks import Mask
from attentropy.core.resolve import check_scale, check_softcap
from attentropy.core.scales import CosScale, ScaleRule
from attentropy.core.weights import Sigmoid, Softpick, Weights
from attentropy.distributed.groups import Group
from attentropy.distributed.layouts import Spread, spread
from attentropy.models.intercept import registry
from attentropy.models.intercept.candidates import has_transformers, is_compiled, may_attend
from attentropy.models.intercept.tracking import track
from attentropy.models.plan import Plan
from attentropy.models.rope.rotary import turn
from attentropy.models.steer.changes import Change, Norm, Planned, Touch, check_norm
from attentropy.models.steer.context_parallel import Spreading, give_positions
from attentropy.models.steer.coverage import (
    Reached,
    SteeredModule,
    covered,
    hold_all,
    out_of_reach,
)
from attentropy.models.steer.sequences import Sequences
from attentropy.models.tensor_parallel import SharedHeads, shared_heads

Temperatures = float | Sequence[float] | Tensor | Mapping[str, Any]


def steer(
    model: nn.Module,
    plan: Plan | None = None,
    *,
    scale: ScaleRule | float | Tensor | Plan | None = None,
    temperature: Temperatures | None = None,
    qk_norm: Norm = False,
    softcap: float | None = None,
    weights: Weights | None = None,
    mask: Mask | None = None,
    layers: Callable[[str], bool] | Collection[str] | None = None,
    context_parallel: Group | Spread = None,
) -> "Steered":
    """Change every attention call of `model`, or of some layers, and return the handle.

    Args:
        model: a transformers model, or one that calls F.scaled_dot_product_attention or attend(),
            as the layers of attentropy.nn do. Calls of attend() get these options in place of
            theirs.
        plan: what calibrate() or extend() found: a factor per head and length, and settings of
            rotary positions, which are those of the whole model.
        scale: a rule, a number or a tensor [H]. LogLengthFrom, HoldEntropy, InfoScale, PowerLength
            and StepLog multiply the scale that the model has, and that of `qk_norm`; others replace
            it. CosScale is refused, because dot products have no bound: `qk_norm=16.0` makes
            cosines and gives them their scale. A plan is accepted here too.
        temperature: divides the logits, including a bias of the model: a number, one number per
            head, or a mapping from layer names to either.
        qk_norm: True or "rms" gives queries and keys root mean square 1 and the scale 1 / sqrt(d),
            "layer" subtracts their mean first; a number makes scores cosines with this scale; or a
            function (q, k) -> (q, k).
        softcap: c in c * tanh(s / c).
        weights: a value of attentropy.core.weights in place of softmax. Sigmoid and Softpick are
            refused: a model has to be trained with rows that do not sum to 1.
        mask: hides more keys; the model's own mask stays.
        layers: names of modules, which include all modules inside them, or a function that takes
            the name of a module that calls attention, as in `w.heads()` of watch(), and returns a
            bool.
        context_parallel: a mesh of one dimension or a group, or `at.zigzag.over(mesh)`, whose
            ranks share every sequence. The model is called with this rank's tokens and its part of
            the padding mask; causal models that take position_ids, with sliding windows or without.
            A pass that continues a cache reads the same new tokens on every rank.
    """
    if isinstance(scale, Plan):
        if plan is not None:
            raise ArgumentError("scale", "left out where a plan is given", "a plan")
        plan, scale = scale, None
    _check(model, plan, scale, mask, weights)
    if layers is not None and plan is not None and plan.rope is not None:
        raise ArgumentError("layers", "left out where a plan sets positions", repr(layers))
    if plan is not None:
        _warn_of(plan)
    check_norm(qk_norm)
    check_softcap(softcap)
    found = list(may_attend(model))
    if not found:
        rule = "one that has modules of its own, which call attention"
        raise ArgumentError("model", rule, type(model).__name__)
    names = {name for name, _ in found}
    _check_named("plan", () if plan is None else plan.factors, names)
    _check_named("temperature", temperature if isinstance(temperature, Mapping) else (), names)
    shared = shared_heads(model)
    base = Change(qk_norm=qk_norm, softcap=softcap, weights=weights, mask=mask)
    changes = {
        module: replace(
            base,
            temperature=_own(_temperature(temperature, name), module, shared),
            scale=_own(scale if plan is None else plan.rule(name), module, shared),
        ).of(name)
        for name, module in found
        if _matches(name, layers)
    }
    if not changes:
        raise ArgumentError("layers", "names of modules of the model", repr(layers))
    for module, change in changes.items():
        change.leave(out_of_reach(module))
    handle = Steered([change.touch for change in changes.values()])
    try:
        handle._attach(model, [module for _, module in found], changes)
        if context_parallel is not None:
            handle._spread(model, list(changes), context_parallel, mask)
        if plan is not None and plan.rope is not None:
            handle._undo.append(turn(model, plan.rope))
        handle._install(model, layers)
    except BaseException:
        handle.undo()
        raise
    return handle


class Steered:
    """A change that lasts until `undo()`; `applied` says whether any call was changed yet."""

    def __init__(self, touches: list[Touch]) -> None:
        self._touches = touches
        self._reached: Reached | None = None
        self._undo: list[Callable[[], Any]] = []

    @property
    def applied(self) -> bool:
        """Has the change reached an attention call?"""
        return any(touch.applied for touch in self._touches)

    @property
    def left_alone(self) -> tuple[str, ...]:
        """Modules that attended unchanged, because the change cannot act on their calls."""
        return tuple(one.module for one in self.coverage() if one.status == "unchanged")

    def coverage(self) -> list[SteeredModule]:
        """What the change did in each module that attended, and why it did not act.

        >>> import torch, attentropy as at
        >>> layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        >>> handle, x = at.steer(layer, temperature=2.0), torch.ones(1, 3, 8)
        >>> _ = layer(x, x, x, need_weights=False)
        >>> handle.coverage()
        [SteeredModule(module='', status='changed', why='')]
        >>> handle.undo()
        """
        return covered(self._touches)

    def require(self) -> None:
        """Raise UnsupportedError, with the reason, if forward passes ran and nothing is changed."""
        if self._reached is not None:
            self._reached.require()

    def undo(self) -> None:
        """Put everything back as it was; other changes and watches stay."""
        with registry.alone():
            while self._undo:
                self._undo.pop()()

    def _attach(
        self, model: nn.Module, found: list[nn.Module], changes: dict[nn.Module, Change]
    ) -> None:
        """Track all modules, for calls of those without a change are not of what is around them."""
        attached, untrack = track(found)
        self._undo.append(untrack)
        for module, one in zip(found, attached, strict=True):
            if module in changes:
                self._undo.append(one.steer(changes[module]))

    def _spread(
        self, model: nn.Module, chosen: list[nn.Module], over: Group | Spread, mask: Mask | None
    ) -> None:
        """Send the calls of modules around a ring; other changes then see all keys."""
        if mask is not None:
            raise UnsupportedError("context_parallel takes no mask besides the model's own")
        ring = spread(over)
        sequences = Sequences(ring)
        if has_transformers(model):
            self._undo.append(give_positions(model, sequences))
        attached, untrack = track(chosen)
        self._undo.append(untrack)
        for one in attached:
            self._undo.append(registry.replace(one, "ring", Spreading(ring, sequences)))

    def _install(self, model: nn.Module, layers: Any) -> None:
        hugging = has_transformers(model)
        self._undo.extend(hold_all(model, hugging=hugging))
        counts = not is_compiled(model)
        reached = Reached(self._touches, type(model).__name__, layers is None, hugging, counts)
        self._undo.append(model.register_forward_hook(reached).remove)
        (root,), untrack = track([model])
        self._undo.append(untrack)
        self._undo.append(root.follow(reached))
        self._reached = reached


def _own(given: Any, module: nn.Module, shared: SharedHeads | None) -> Any:
    """What is given for each head, for those of this process."""
    if shared is None or not shared.cuts(module):
        return given
    if isinstance(given, Planned):
        return replace(given, factors=shared.own(given.factors))
    return shared.own(given) if isinstance(given, Tensor) and given.dim() == 1 else given


def _warn_of(plan: Plan) -> None:
    """Say so if the plan was measured to hurt."""
    if plan.judged is not None and plan.judged.change.hurts:
        text = (
            "attentropy: this plan was measured to hurt: at the end of "
            f"{plan.judged.length:,} tokens the loss goes {plan.judged.change}"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def _matches(name: str, layers: Any) -> bool:
    if layers is None:
        return True
    if callable(layers):
        return bool(layers(name))
    return any(name == one or name.startswith(one + ".") for one in layers)


def _temperature(given: Temperatures | None, name: str) -> Tensor | None:
    if isinstance(given, Mapping):
        given = given.get(name)
    if given is None:
        return None
    device = given.device if isinstance(given, Tensor) else "cpu"
    tau = torch.as_tensor(given, dtype=torch.float32, device=device)
    if tau.dim() > 1 or not bool((tau > 0).all()) or not bool(tau.isfinite().all()):
        raise ArgumentError("temperature", "positive, a number or one per head", given)
    return tau


def _check_named(argument: str, given: Collection[str], names: set[str]) -> None:
    missing = [name for name in given if name not in names]
    if missing:
        raise ArgumentError(argument, "by names of modules of the model", ", ".join(missing[:3]))


def _refuse_layers(*given: Any) -> None:
    """Say why a layer of attentropy.nn, or its class, cannot be given to a trained model."""
    for value in given:
        kind = value if isinstance(value, type) else type(value)
        if issubclass(kind, nn.Module) and kind.__module__.startswith("attentropy.nn.layers."):
            raise UnsupportedError(
                f"steer does not take {kind.__name__}: it is a layer whose own parameters must be "
                f"trained, and a trained model has none for it. Build it into a new model: "
                f"at.nn.{kind.__name__}(...)"
            )


def _check(model: Any, plan: Any, scale: Any, mask: Any, weights: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError("model", "a torch.nn.Module", type(model).__name__)
    if plan is not None and not isinstance(plan, Plan):
        raise ArgumentTypeError("plan", "a Plan of calibrate() (rules go to scale=)", repr(plan))
    if plan is not None and scale is not None:
        raise ArgumentError("scale", "left out where a plan is given", repr(scale))
    _refuse_layers(scale, weights)
    if scale is not None:
        check_scale(scale)
    if isinstance(scale, CosScale):
        growth = "" if scale.growth is None else f", scale={scale.growth}"
        raise UnsupportedError(
            "steer does not take CosScale: it is the scale of cosines, and a trained model has dot "
            f"products. steer(model, qk_norm={scale.value:g}{growth}) makes cosines of them"
        )
    number = isinstance(scale, Real) and not math.isfinite(scale)
    if number or (isinstance(scale, Tensor) and not scale.isfinite().all()):
        raise ArgumentError("scale", "finite", repr(scale))
    if mask is not None and not isinstance(mask, Mask):
        raise ArgumentTypeError("mask", "a Mask", repr(mask))
    if weights is not None and not isinstance(weights, Weights):
        raise ArgumentTypeError("weights", "a value of attentropy.core.weights", repr(weights))
    if isinstance(weights, Sigmoid | Softpick):
        raise UnsupportedError(
            f"steer does not take {type(weights).__name__} weights: their rows do not sum to 1, "
            "and a model that was trained with softmax would get outputs of another size. Train "
            f"layers with them: at.nn.MultiheadAttention(..., weights={weights})"
        )
