"""Code that computes its attention by hand: its softmax is observed, and steered.

While the tap is in, `softmax` of torch, torch.nn.functional, torch.special and of tensors reports
rows of weights to the innermost running module if it is watched. What happens to the weights
afterwards is not seen, so there is no output norm. Whether a softmax is attention is learned from
the census of the first forward pass; without one, its shape and the name of the module decide.
A steered module gets other logits.
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from attentropy.core.call import Call
from attentropy.core.masks import Extent
from attentropy.core.results import Stats
from attentropy.core.weights import Softmax
from attentropy.kernels.tiled.logits import wide
from attentropy.models.intercept import candidates, early, registry, tracking
from attentropy.models.intercept.arguments import own_lengths
from attentropy.models.intercept.by_hand.layouts import LogitsLayout, layout_of
from attentropy.models.intercept.census import Sinks, Softmaxed, is_used, sinks_of, span_of
from attentropy.models.intercept.compute import is_cross, leave, reach, refused
from attentropy.models.intercept.tracking import STATE, changes_of, computing, owner_of
from attentropy.models.record.accumulators import Owner
from attentropy.models.record.model_call import ModelCall
from attentropy.models.record.model_masks import FAR, ModelMask, hidden_keys, read_table

if TYPE_CHECKING:
    from attentropy.models.steer.changes import Change

BY_HAND = "attention computed by hand"
UNTOLD = f"{BY_HAND}, which neither its shape nor a name tells from other softmaxes"
HOLDERS = (F, torch, torch.Tensor, torch.special)


def hold(kinds: frozenset[type[nn.Module]] = frozenset()) -> registry.Undo:
    """Listen to softmax, until the function returned is called.

    Args:
        kinds: names that the code of these classes has bound to it are listened to as well.
    """
    held = registry.hold("softmax", _apply)
    return registry.together(held, early.hold(kinds, TAKEN))


def _apply() -> registry.Undo:
    return registry.together(
        *(registry.replace(one, "softmax", _tapped(one.softmax)) for one in HOLDERS)
    )


def _tapped(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def softmax(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        # into memory that is there already, only a kernel writes: one of ours, called by a graph
        if STATE.computing or not isinstance(input, Tensor) or kwargs.get("out") is not None:
            return original(input, *args, **kwargs)
        if isinstance(input, FakeTensor):  # a compiler asks for the shape of the result
            return original(input, *args, **kwargs)
        module = tracking.current()
        dim: Any = args[0] if args else kwargs.get("dim")
        if module is None or not _is_matrix(input, dim):
            return original(input, *args, **kwargs)
        with computing():
            logits = _steered(module, input, dim)
            weights = original(logits, *args, **kwargs)
            _observe(module, logits, weights, dim)
            _count(module, logits, weights, dim)
        return weights

    return softmax


def _is_matrix(x: Tensor, dim: Any) -> bool:
    if not isinstance(dim, int) or x.dim() < 2 or not x.is_floating_point() or not x.numel():
        return False
    # a decoder starts with one key; over one in other shapes, nobody attends
    return dim % x.dim() >= x.dim() - 2 and (x.shape[dim] > 1 or x.dim() == 4)


TAKEN = {id(one): (one, _tapped(one)) for one in (F.softmax, torch.softmax, torch.special.softmax)}
"""What names that are bound early are replaced by."""


def _attends(module: nn.Module, logits: Tensor, way: Hashable) -> bool:
    """Is it attention? By what was learned of it, or else by its shape and the module's name."""
    known = None if torch.compiler.is_compiling() else is_used(module, way)
    if known is not None:
        return known
    if logits.dim() == 4:
        return True
    owner, changes = owner_of(module), changes_of(module)
    name = owner.name if owner is not None else changes[0].touch.name if changes else ""
    return logits.dim() > 2 and candidates.looks_like_attention(name, module)


def _steered(module: nn.Module, logits: Tensor, dim: int) -> Tensor:
    """The logits as the module is steered to have them."""
    changes = changes_of(module)
    if not changes or not _is_steered(module, changes, logits, dim):
        return logits
    reasons = [change.not_by_softmax for change in changes]
    needed = [why for why in reasons if why is not None]
    if needed or tracking.tracked(module).ring is not None:  # type: ignore[union-attr]
        leave(module, f"{BY_HAND}, where {needed[0]}" if needed else BY_HAND)
        return logits
    try:
        return _changed(module, changes, logits, dim)
    except Exception as error:  # nothing of ours may end a user's forward pass
        leave(module, refused(error))
        return logits


def _is_steered(module: nn.Module, changes: tuple["Change", ...], logits: Tensor, dim: int) -> bool:
    """Is it taken for attention? As the first such softmax was, watched or not."""
    known, way = changes[0].touch.softmaxes, _way(None, logits, dim)
    if torch.compiler.is_compiling():
        return _attends(module, logits, way)
    return known.setdefault(way, _attends(module, logits, way))


def _changed(module: nn.Module, changes: tuple["Change", ...], logits: Tensor, dim: int) -> Tensor:
    """The logits after all changes, which are noted."""
    layout = layout_of(module, logits, dim)
    s = layout.rows(logits)
    hidden = hidden_keys(s.detach())
    for change in changes:
        s = change.logits(s, hidden)
    steered = layout.back(s)
    reach(module)
    return steered


def _count(module: nn.Module, logits: Tensor, weights: Tensor, dim: int) -> None:
    """Let the census of a steered model find out what shape and name did not tell."""
    changes = changes_of(module)
    if STATE.census is not None and changes and not _is_steered(module, changes, logits, dim):
        STATE.census.softmax(weights, Softmaxed(module, UNTOLD, span_of(weights, dim)))


@torch.no_grad()
def _observe(module: nn.Module, logits: Tensor, weights: Tensor, dim: int) -> None:
    owner = owner_of(module)
    if owner is None or not owner.recorder.wants():
        return
    way = _way(owner, logits, dim)
    owner.softmaxes += 1
    census = owner.recorder.census
    if census is None and not _attends(module, logits, way):
        return
    layout = layout_of(module, logits, dim)

    def prepared(sinks: Sinks) -> Callable[[], None]:
        found = _read(module, layout, logits, weights, sinks)
        return owner.recorder.prepare(owner, *owner.recorder.whole(owner, *found))

    if census is None:
        commit = prepared(sinks_of(module, way))
        commit() if STATE.held is None else STATE.held.append(commit)
        return
    one = Softmaxed(module, BY_HAND, span_of(weights, dim), way=way)
    one.sinks, one.keys = census.sinks_of(logits), logits.shape[dim]
    whole = prepared((0, 0))
    bare = prepared(one.sinks) if sum(one.sinks) else whole
    one.record = lambda: bare() if one.has_sinks else whole()
    census.softmax(weights, one)
    if STATE.held is not None:
        STATE.held.append(one.record)
        one.record = _nothing


def _nothing() -> None:
    """Record nothing: what holds a call decides."""


def _way(owner: Owner | None, logits: Tensor, dim: int) -> Hashable:
    return 0 if owner is None else owner.softmaxes, logits.dim(), dim % logits.dim()


def _read(
    module: nn.Module, layout: LogitsLayout, logits: Tensor, weights: Tensor, sinks: Sinks
) -> tuple[ModelCall, None, Stats]:
    """A softmax as a call, and the statistics of its rows."""
    p = layout.rows(wide(weights))
    whole = layout.rows(logits.detach()).to(p.dtype)
    s = whole[..., sinks[0] : whole.shape[-1] - sinks[1]]
    seen = ~hidden_keys(s)
    extent = Extent(*layout.shape[:3], s.shape[-1], s.device)
    cross = layout.is_plain and is_cross(module, extent)
    lengths = own_lengths()
    is_part = not layout.is_plain or (bool(lengths) and extent.queries not in lengths)
    # without a place among the keys, the queries are read as those of cross-attention are
    mask = read_table(seen, extent, cross=cross or is_part)
    mask = replace(mask, cross=cross, blind=s.amax(-1) < -FAR)
    in_blocks = is_part and extent.keys < max(lengths, default=math.inf)
    asked = ModelCall(_call(s, mask), mask, in_blocks=in_blocks)
    return asked, None, _stats(s, p, seen, lse=whole.logsumexp(-1))


def _call(s: Tensor, mask: ModelMask) -> Call:
    """A call whose scores are 0, because nothing has a width, and whose bias are the logits."""
    rows, keys = s[..., :0], s.mT[..., :0]
    one = torch.ones(1, 1, 1, dtype=s.dtype, device=s.device)
    return Call(rows, keys, keys, one, Softmax(), mask.seen, bias=s)


def _stats(s: Tensor, p: Tensor, seen: Tensor, *, lse: Tensor) -> Stats:
    """Statistics of rows whose logits and weights are there already.

    Args:
        s: logits of the keys [B,H,Q,K].
        p: weights of the keys, and of sinks beside them.
        seen: keys that are visible.
        lse: of the logits, those of sinks included.
    """
    top, argmax = s.max(-1)
    entropy = torch.special.entr(p).sum(-1)
    surprise = p.log().masked_fill_(p == 0, 0.0).add_(entropy[..., None])
    return Stats(
        entropy=entropy,
        lse=lse,
        max_logit=top,
        argmax=argmax,
        collision=p.square().sum(-1),
        visible=seen.sum(-1),
        varentropy=(p * surprise.square_()).sum(-1),
    )
