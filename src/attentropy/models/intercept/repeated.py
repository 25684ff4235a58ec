"""Calls that a watched module repeats: only the kernel runs, and adds up the rows.

A call of scaled_dot_product_attention that was found equal to the model's own is resolved once for
its sizes. When it comes again, by the same module and without gradients, its plan computes output
and sums, and nothing else is done. Every other call takes the long way.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from attentropy.core.call import Call
from attentropy.core.masks import Extent
from attentropy.kernels.fused import library, summary
from attentropy.kernels.fused.plan import CallPlan
from attentropy.kernels.fused.summary import Summing
from attentropy.models.intercept import verify
from attentropy.models.intercept.arguments import in_windows, real_queries
from attentropy.models.intercept.tracking import STATE, Tracked, owner_of
from attentropy.models.record.accumulators import CallSizes, Owner, Place, Slot
from attentropy.models.record.measures import PLACES, CountedRows, summed_rows
from attentropy.models.record.model_call import ModelCall
from attentropy.models.record.model_masks import ModelMask

QKV = tuple[Tensor, Tensor, Tensor]
KINDS = 64  # of calls of a module that are remembered
SEEN_ONCE = "seen once"


class MaskedPlan(NamedTuple):
    """The plan of a call under a given mask and padding.

    Attributes:
        real: queries that are not padding; None if all count.
        plan: computes such calls.
        summing: which of their rows are summed.
    """

    real: Tensor | None
    plan: CallPlan
    summing: Summing


@dataclass(eq=False, slots=True)
class Known:
    """What is known about the calls of one kind.

    Attributes:
        kind: what `kind_of` gave.
        plan: computes them.
        extent: their sizes.
        sample: how many rows are looked at key by key; None for all.
        elements: number of elements of the queries.
        unmasked: what the queries see where no mask is given; by where keys come from.
    """

    kind: Hashable
    plan: CallPlan
    extent: Extent
    sample: int | None
    elements: int
    unmasked: dict[bool, ModelMask] = field(default_factory=dict)


class Served(NamedTuple):
    """How the last call of a kind was served.

    Attributes:
        mask: what its queries saw.
        call: its number in the forward pass.
        way: the plan.
        slot: where its rows were added.
    """

    mask: ModelMask
    call: int
    way: MaskedPlan
    slot: Slot


def kind_of(
    attached: Tracked, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, options: Hashable
) -> Hashable | None:
    """What tells recorded calls of a module apart; None for one that must take the long way.

    Args:
        attached: what is attached to the module.
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        v: values [B,Hk,K,Dv].
        mask: as it was given.
        options: of the call.
    """
    owner = attached.owner
    if owner is None or attached.changes or attached.ring is not None or STATE.held is not None:
        return None
    recorder = owner.recorder
    if torch.compiler.is_compiling() or not recorder.is_steady():
        return None
    if not (type(q) is type(k) is type(v) is Tensor) or q.dim() != 4 or _is_looked_at(q, k, v):
        return None
    form = None if mask is None else (mask.shape, mask.dtype)
    return (
        q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), q.dtype, k.dtype, v.dtype,
        form, options, recorder.sample, recorder.verify, torch.is_inference_mode_enabled(),
    )  # fmt: skip


def _is_looked_at(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Does anything follow the operators of the call: gradients, transforms, modes, autocast?"""
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return True
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch._C._is_any_autocast_enabled()
        or not q.is_cpu
        or q.is_neg()
        or k.is_neg()
        or v.is_neg()
    )


def known_of(module: nn.Module) -> dict[Hashable, Any]:
    """What is known about the calls of a module, by kind; it is kept after a watch ends.

    Args:
        module: makes the calls.
    """
    return verify.repeated.setdefault(module, {})


def find(owner: Owner, kind: Hashable) -> Known | None:
    """What is known about the calls of a kind; None if they take the long way.

    Args:
        owner: the record of the module that makes them.
        kind: what `kind_of` gave.
    """
    found = owner.known.get(kind)
    return found if type(found) is Known else None


def is_due(module: nn.Module, kind: Hashable) -> bool:
    """Has a call of this kind come a second time, so that `learn` is worth its cost?

    Args:
        module: made the call.
        kind: what `kind_of` gave.
    """
    known = known_of(module)
    if kind in known:
        return known[kind] is SEEN_ONCE
    if len(known) >= KINDS:
        known.clear()
    known[kind] = SEEN_ONCE
    return False


def learn(module: nn.Module, kind: Hashable, way: Hashable, asked: ModelCall) -> None:
    """Remember how a call is made, if it was found equal to the model's own, and can be repeated.

    Args:
        module: made the call.
        kind: what `kind_of` gave.
        way: what tells its calls apart when they are verified.
        asked: the call.
    """
    owner, known = owner_of(module), None
    if owner is not None and verify.verdict(module, way) == "":
        plan = _plan_of(asked.call)
        if plan is not None:
            extent, elements = asked.mask.seen.extent, asked.call.q.numel()
            known = Known(kind, plan, extent, owner.recorder.sampled_rows(asked), elements)
    known_of(module)[kind] = known


def _plan_of(call: Call) -> CallPlan | None:
    """How calls with sums are computed; None if they take the long way."""
    plain = call.bias is None and not call.dropout and call.q.dtype is torch.float32
    fits = call.q.shape[0] == call.v.shape[0]
    return CallPlan.of(call) if plain and fits and summary.serves(call) else None


def answer(owner: Owner, known: Known, mask: ModelMask, tensors: QKV) -> Tensor | None:
    """The output of a call, whose rows are added up; None if it must take the long way.

    Args:
        owner: the record of the module that makes it.
        known: what is known of such calls.
        mask: what the queries see.
        tensors: queries, keys and values.
    """
    last: Served | None = owner.served.get(known)
    if (last is None or last.mask is not mask) and not _is_plain(mask):
        return None
    batch, _, queries, keys, _ = known.extent
    real = real_queries(batch, queries, cross=mask.cross, step=mask.step)
    call = owner.count("attend") if owner.recorder.inside else 0
    if last is None or last.mask is not mask or last.call != call or last.way.real is not real:
        last = _served(owner, known, mask, real, call)
    if last.way.plan.library is not library.serving:
        return None
    window = not mask.cross and (mask.slides or in_windows(batch, queries))
    last.slot.describe(CallSizes(tensors[0].shape[3], keys, mask.is_causal, window))
    return last.way.plan.sum(*tensors, last.way.summing, (last.slot.sums, last.slot.top))


def _is_plain(mask: ModelMask) -> bool:
    """Is all that a mask says in its bounds or its table?"""
    seen = mask.seen
    return mask.blind is None and seen.added is None and seen.predicate is None


def _served(owner: Owner, known: Known, mask: ModelMask, real: Tensor | None, call: int) -> Served:
    """How a call is made and where it is added, kept for the next pass."""
    phase, kind = "step" if mask.step else "forward", "cross" if mask.cross else "self"
    place = Place(owner.name, call, phase, kind, "attend", known.extent.heads)
    slot = owner.slot_of(place, device=known.extent.device)
    served = Served(mask, call, _masked(known, mask, real), slot)
    if mask.seen.table is None:  # else it would be kept alive
        owner.served[known] = served
    return served


def _masked(known: Known, mask: ModelMask, real: Tensor | None) -> MaskedPlan:
    """Worked out once for layers that see alike, as long as the same queries are padding."""
    way: MaskedPlan | None = mask.notes.get(known.kind)
    if way is None or way.real is not real:
        visible = mask.seen.visible
        chosen = CountedRows.of(mask, visible, real)
        rows = summed_rows(mask, visible, chosen, known.sample, elements=known.elements)
        summing = Summing(rows, known.extent[:3], PLACES)
        way = mask.notes[known.kind] = MaskedPlan(real, known.plan.seeing(mask.seen), summing)
    return way
