"""An attention call of a watched or steered module: changed, resolved, computed, recorded.

Calls that a model makes by itself come through `answer`. Calls of attend(), which layers of
attentropy.nn make, come through its hooks: their output and statistics stay the kernel's own.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from attentropy.attention.attend import run
from attentropy.attention.hooks import Make, hooks
from attentropy.core.call import Call
from attentropy.core.errors import AttentropyError
from attentropy.core.masks import Extent
from attentropy.core.resolve import Options, resolve
from attentropy.core.results import Attended
from attentropy.core.visibility import ALL
from attentropy.core.weights import Gumbel, Softmax
from attentropy.kernels.attended import attended
from attentropy.kernels.tiled.logits import row_logits
from attentropy.models.intercept import recomputed, registry, tracking, verify
from attentropy.models.intercept.arguments import from_elsewhere
from attentropy.models.intercept.candidates import looks_like_cross
from attentropy.models.intercept.tracking import (
    STATE,
    Tracked,
    changes_of,
    computing,
    holding,
    owner_of,
)
from attentropy.models.record.accumulators import Owner
from attentropy.models.record.measures import RECORDED
from attentropy.models.record.model_call import ModelCall
from attentropy.models.record.model_masks import ModelMask, from_call

if TYPE_CHECKING:
    from attentropy.models.steer.context_parallel import Spreading

FAILS = "the change cannot be made"
AROUND_RING = (
    "context_parallel, where a rank has only some keys; ring_attend() and attentropy.nn return "
    "exact statistics"
)


class ModelInputs(NamedTuple):
    """The arguments of a model's attention call, before steering and checks.

    Attributes:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        v: values [B,Hk,K,Dv].
        options: of attend(); the mask among them is not looked at.
        mask: what the queries see.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    options: Options
    mask: ModelMask


@dataclass(frozen=True, eq=False, kw_only=True)
class Intercepted:
    """An attention call that a model makes, and what it would compute by itself.

    Attributes:
        way: what tells calls of one module apart when they are verified.
        read: gives the call as attend() takes it.
        own: computes the result by the model's own function; takes another `dropout`.
        output: the output [B,H,Q,Dv] in a result of that function.
        result: makes such a result of an output and its weights.
        dropout: share of weights dropped.
        maps: the weights [B,H,Q,K] are asked for.
        by_softmax: the model's own function calls softmax, where it can be observed and changed.
    """

    way: Hashable
    read: Callable[[], ModelInputs]
    own: Callable[..., Any]
    output: Callable[[Any], Tensor]
    result: Callable[[Tensor, Tensor | None], Any]
    dropout: float = 0.0
    maps: bool = False
    by_softmax: bool = False


def answer(module: nn.Module, made: Intercepted) -> Any:
    """The result of a call that a model makes: the model's own, or one that equals it to rounding.

    Args:
        module: the module that makes the call.
        made: the call.
    """
    attached = tracking.tracked(module) or Tracked(type(module))
    if attached.ring is not None:
        with computing():
            return made.result(_around_ring(module, attached.ring, made.read()), None)
    owner = _wanting(attached.owner)
    if owner is None and not attached.changes:
        with computing():
            return made.own()
    if attached.changes and _acts_on_softmax(attached, made):
        return made.own()
    if torch.compiler.is_compiling():  # a graph cannot compare
        serves = not (made.by_softmax or made.dropout)
        if attached.changes:
            return _steered(module, made, owner)
        return served(module, made, owner) if serves else _beside(module, made, owner)
    against = verify.verdict(module, made.way)
    rounded = against == verify.ROUNDED and not attached.changes
    if against and not rounded:
        return _alone(module, made, against)
    mode = "first" if attached.owner is None else attached.owner.recorder.verify
    unsure = mode == "always" or (mode == "first" and against is None)
    if attached.changes:
        against = _compared(module, made) if unsure else ""
        return _alone(module, made, against) if against else _steered(module, made, owner)
    if unsure or rounded or made.dropout or tracking.in_checkpoint():
        return _beside(module, made, owner, compare=unsure)
    try:
        return served(module, made, owner)
    except Exception as error:
        return _alone(module, made, _refused(module, made, error))


def _acts_on_softmax(attached: Tracked, made: Intercepted) -> bool:
    """Is the model's own function steered, at its softmax?

    A factor is that of the whole logit, and beside a bias, a softcap or a sink the scores are not
    all of it.
    """
    if not made.by_softmax or any(c.not_by_softmax is not None for c in attached.changes):
        return False
    try:
        _, _, _, options, mask = made.read()
    except Exception:
        return True
    beside = (options.bias, options.softcap, options.sink, mask.seen.added)
    return any(part is not None for part in beside)


def served(module: nn.Module, made: Intercepted, owner: Owner | None) -> Any:
    """The result of a call by attend(), as the module is steered.

    Args:
        module: makes the call.
        made: the call.
        owner: records it; None if nobody does.
    """
    with computing():
        asked = ask(module, made.read())
        found = attended(asked.call, run(asked.call, "auto"))
        _record(owner, asked, found)
        result = made.result(found.out, weights_of(asked) if made.maps else None)
        reach(module)
        return result


def _steered(module: nn.Module, made: Intercepted, owner: Owner | None) -> Any:
    """The result of a call as the module is steered; the model's own where that cannot be done."""
    try:
        return served(module, made, owner)
    except Exception as error:  # nothing of ours may end a user's forward pass
        return _alone(module, made, refused(error))


def _beside(
    module: nn.Module, made: Intercepted, owner: Owner | None, *, compare: bool = False
) -> Any:
    """The model's own result, recorded beside it, and compared with it if asked.

    It serves the first call; where dropout draws weights; and under checkpointing, whose
    recomputation may come after the watch.
    """
    if not compare:
        with computing():
            result = made.own()
            asked, found = _without_dropout(module, made)
            _record(owner, asked, found)
        return result
    with holding() as held:
        result = made.own()
    reason, calls = _judged(module, made, result)
    if reason == verify.ROUNDED and owner is not None:
        owner.recorder.beside[owner.name] = reason
    elif reason:
        _tell(module, made, reason)
        for record in held:
            record()
        return result
    if calls is not None:
        with computing():
            _record(owner, *calls)
    return result


def _compared(module: nn.Module, made: Intercepted) -> str:
    """Why attend() does not serve the calls of a module that is steered; "" if it does."""
    with torch.no_grad(), computing():
        return _judged(module, made, None)[0]


def _judged(
    module: nn.Module, made: Intercepted, result: Any
) -> tuple[str, tuple[ModelCall, Attended] | None]:
    """Why the model's own function serves the call, and the call by attend()."""
    found = None
    try:
        with torch.no_grad(), computing():
            if result is None or made.dropout:
                with torch.random.fork_rng():
                    result = made.own(dropout=0.0)
            found = _without_dropout(module, made, steered=False)
            reason = verify.difference(made.output(result), found[1].out)
    except Exception as error:
        return _refused(module, made, error), None
    verify.remember(module, made.way, reason)
    return reason, found


def _refused(module: nn.Module, made: Intercepted, error: Exception) -> str:
    reason = f"attend() does not take its call: {error}"
    verify.remember(module, made.way, reason)
    return reason


def _alone(module: nn.Module, made: Intercepted, reason: str) -> Any:
    """The model's own result; statistics and changes, if any, are those of its softmax."""
    _tell(module, made, reason)
    if made.by_softmax:
        return made.own()
    with computing():
        return made.own()


def _tell(module: nn.Module, made: Intercepted, reason: str) -> None:
    if made.by_softmax:
        owner = _wanting(owner_of(module))
        if owner is not None:
            owner.recorder.beside[owner.name] = reason
    else:
        pass_by(module, reason)


@torch.no_grad()
def _without_dropout(
    module: nn.Module, made: Intercepted, *, steered: bool = True
) -> tuple[ModelCall, Attended]:
    """The call by attend(); dropout would draw a random number that the model does not."""
    given = made.read()
    given = given._replace(options=given.options._replace(dropout=0.0))
    asked = ask(module, given, steered=steered)
    return asked, attended(asked.call, run(asked.call, "auto"))


def ask(module: nn.Module, given: ModelInputs, *, steered: bool = True) -> ModelCall:
    """The call that a module makes.

    Args:
        module: makes the call.
        given: what it gives to the call.
        steered: make it as the module is steered to.
    """
    mask = given.mask
    q, k, options = given.q, given.k, given.options._replace(mask=mask.seen)
    if steered:
        q, k, options = changed(module, q, k, options)
    call = resolve(q, k, given.v, options._replace(stats=RECORDED))
    if options.mask is not mask.seen:
        mask = mask.seeing(call.seen)
    elif call.bias is not None and mask.choice_from is not None:
        mask = replace(mask, choice_from=None)  # a bias may hide keys
    return ModelCall(call, mask)


def changed(
    module: nn.Module, q: Tensor, k: Tensor, options: Options
) -> tuple[Tensor, Tensor, Options]:
    """Queries, keys and options as the module is steered to have them.

    Args:
        module: makes the call.
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        options: of attend().
    """
    changes = changes_of(module)
    for change in changes:
        q, k, options = change(module, q, k, options)
    return q, k, options


@torch.no_grad()
def weights_of(asked: ModelCall) -> Tensor | None:
    """The weights [B,H,Q,K] of a call, without dropout; None if they are not softmax.

    A query that sees nothing has weights of 0.
    """
    call = asked.call
    if not isinstance(call.weights, Softmax):
        return None
    s = row_logits(call, ALL)
    if call.sink is not None:
        column = call.sink.to(s.dtype).view(1, -1, 1, 1).expand(*s.shape[:3], 1)
        s = torch.cat([s, column], -1)
    p = s.softmax(-1).masked_fill(s.isneginf().all(-1, keepdim=True), 0.0)
    return p[..., : call.k.shape[2]].to(call.q.dtype)


def _around_ring(module: nn.Module, ring: "Spreading", given: ModelInputs) -> Tensor:
    miss(module, AROUND_RING)
    options = given.options._replace(mask=ring.mask(module, given))
    # a model repeats the heads of keys or not as its mask is, which ranks may have in other forms
    group = 1 if ring.stays else given.q.shape[1] // given.k.shape[1]
    k, v = (x.repeat_interleave(group, 1) if group > 1 else x for x in (given.k, given.v))
    q, k, options = changed(module, given.q, k, options)
    out = ring.attend(q, k, v, options).out
    reach(module)
    return out


def _wanting(owner: Owner | None) -> Owner | None:
    """The owner, if its call is to be recorded."""
    return owner if owner is not None and owner.recorder.wants() else None


def _record(owner: Owner | None, asked: ModelCall, found: Attended) -> None:
    owner = _wanting(owner)
    if owner is not None:
        owner.recorder.record(owner, *owner.recorder.whole(owner, asked, *found))


def pass_by(module: nn.Module | None, how: str) -> None:
    """Record that a call of the module was left alone: neither changed nor recorded.

    Args:
        module: makes the call.
        how: the way in which it attends, in words.
    """
    leave(module, how)
    miss(module, how)


def refused(error: Exception) -> str:
    """Why a change was not made, in words; raises what checkpointing ends a recomputation with.

    Args:
        error: what the change ended with.
    """
    if type(error).__module__ == "torch.utils.checkpoint":
        raise error
    what = "" if isinstance(error, AttentropyError) else f"{type(error).__name__}: "
    return f"{FAILS}: {what}{error}"


def reach(module: nn.Module | None) -> None:
    """Record that a call of the module was changed.

    Args:
        module: makes the call.
    """
    for change in changes_of(module):
        change.reach()


def leave(module: nn.Module | None, how: str) -> None:
    """Record that a call of the module cannot be changed.

    Args:
        module: makes the call.
        how: the way in which it attends, in words.
    """
    attached = tracking.tracked(module)
    if attached is not None and attached.ring is not None:
        attached.ring.leave(how)
    for change in changes_of(module):
        change.leave(how)


def miss(module: nn.Module | None, how: str) -> None:
    """Remember that a call of the module is not recorded.

    Args:
        module: makes the call.
        how: the way in which it attends, in words.
    """
    owner = _wanting(owner_of(module))
    if owner is not None:
        owner.recorder.missed[owner.name] = how


def is_cross(module: nn.Module, extent: Extent) -> bool:
    """Cross-attention, as the arguments of the running modules tell, or else names.

    Args:
        module: makes the call.
        extent: sizes of the call.
    """
    told = from_elsewhere(extent.queries, extent.keys)
    if told is not None:
        return told
    owner = owner_of(module)
    return looks_like_cross("", module) if owner is None else owner.kind == "cross"


def attending() -> nn.Module | None:
    """The module whose attention is computed, also in a recomputation while anything is steered."""
    return recomputed.current() if hooks.change is not None else tracking.current()


def hold_recording() -> registry.Undo:
    """Record calls of attend(), until the function returned is called."""

    def apply() -> registry.Undo:
        return registry.together(
            registry.replace(hooks, "record", _recorded),
            registry.replace(hooks, "skip", _skipped),
        )

    return registry.hold("attend() recorded", apply)


def hold_steering() -> registry.Undo:
    """Steer calls of attend(), until the function returned is called."""

    def apply() -> registry.Undo:
        return registry.replace(hooks, "change", _steered_attend)

    return registry.hold("attend() steered", apply)


def _steered_attend(q: Tensor, k: Tensor, options: Options, make: Make[Any]) -> Any:
    module = None if STATE.computing else attending()
    attached = tracking.tracked(module)
    if module is None or attached is None:  # a call of the model itself is changed already
        return make(q, k, options)
    if attached.ring is not None:
        attached.ring.refuse_attend(module)
    if not attached.changes:
        return make(q, k, options)
    try:
        made = make(*changed(module, q, k, options))
    except Exception as error:  # nothing of ours may end a user's forward pass
        leave(module, refused(error))
        return make(q, k, options)
    reach(module)
    return made


def _recorded(call: Call, compute: Callable[[], Attended]) -> Attended:
    if STATE.computing:
        return compute()
    with computing():
        found = compute()
        _record_attend(call, found)
    return found


@torch.no_grad()
def _record_attend(call: Call, found: Attended) -> None:
    module = tracking.current()
    owner = _wanting(owner_of(module))
    if module is None or owner is None or not call.q.numel() or not call.k.shape[2]:
        return
    untraced = _untraced(call) if torch.compiler.is_compiling() else None
    if untraced is not None:
        miss(module, f"{untraced} in a compiled graph")
        return
    mask = from_call(call, cross=is_cross(module, call.seen.extent))
    asked = ModelCall(call, mask, by_attend=True)
    owner.recorder.record(owner, asked, found.out.detach(), found.stats)


def _untraced(call: Call) -> str | None:
    """What logits are made of that torch.compile does not trace."""
    if call.additive is not None:
        return "additive scores"
    return "Gumbel noise" if isinstance(call.weights, Gumbel) else None


def _skipped(what: str, compute: Callable[[], Attended]) -> Attended:
    if not STATE.computing:
        miss(tracking.current(), f"{what}, which returns exact statistics itself")
    with computing():
        return compute()
