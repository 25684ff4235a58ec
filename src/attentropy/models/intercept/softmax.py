"""Code that computes its attention by hand: its softmax is observed, and nothing is changed.

While the tap is in, `softmax` of torch, of torch.nn.functional and of tensors report rows of
weights to the innermost running module if it is watched and looks like attention. What happens to
the weights afterwards is not seen, so there is no output norm.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.core.call import Call
from attentropy.core.masks import Extent
from attentropy.core.results import Stats
from attentropy.core.weights import Softmax
from attentropy.kernels.tiled.logits import wide
from attentropy.models.intercept import candidates, huggingface, registry, tracking
from attentropy.models.intercept.compute import leave, miss
from attentropy.models.intercept.tracking import STATE, changes_of, computing, owner_of
from attentropy.models.record.model_call import ModelCall
from attentropy.models.record.model_masks import FAR, ModelMask, nowhere, read_table

BY_HAND = "attention computed by hand"


def hold() -> registry.Undo:
    """Listen to softmax, until the function returned is called."""
    return registry.hold("softmax", _apply)


def _apply() -> registry.Undo:
    return registry.together(
        *(
            registry.replace(holder, "softmax", _tapped(holder.softmax))
            for holder in (F, torch, torch.Tensor)
        )
    )


def _tapped(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def softmax(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        # into memory that is there already, only a kernel writes: one of ours, called by a graph
        if STATE.computing or not isinstance(input, Tensor) or kwargs.get("out") is not None:
            return original(input, *args, **kwargs)
        with computing():
            weights = original(input, *args, **kwargs)
            if _is_last(input, args[0] if args else kwargs.get("dim")):
                _observe(input, weights)
        return weights

    return softmax


def _is_last(x: Tensor, dim: Any) -> bool:
    return isinstance(dim, int) and dim in (-1, x.dim() - 1) and x.is_floating_point()


@torch.no_grad()
def _observe(logits: Tensor, weights: Tensor) -> None:
    module = tracking.current()
    if module is None:
        return
    if not torch.compiler.is_compiling() and _attends(module, logits):
        leave(module, BY_HAND)
    owner = owner_of(module)
    if owner is None or not owner.recorder.wants():
        return
    named = candidates.looks_like_attention(owner.name, module)
    shape = _four(module, logits, named=named)
    if shape is None:
        if named and logits.dim() > 3:
            miss(module, _odd(module, logits))
        return
    p = wide(weights).reshape(shape)
    s = logits.detach().to(p.dtype).reshape(shape)
    seen = (s > nowhere(logits.dtype)) & ((s > FAR / 2) | (p > 0))
    mask = read_table(seen, Extent(*shape, s.device), cross=owner.kind == "cross")
    asked = ModelCall(_call(s, mask), _without_padding(mask))
    record = partial(owner.recorder.record, owner, asked, None, _stats(s, p, seen))
    record() if STATE.held is None else STATE.held.append(record)


def _call(s: Tensor, mask: ModelMask) -> Call:
    """A call whose scores are 0, because nothing has a width, and whose bias are the logits."""
    rows, keys = s[..., :0], s.mT[..., :0]
    one = torch.ones(1, 1, 1, dtype=s.dtype, device=s.device)
    return Call(rows, keys, keys, one, Softmax(), mask.seen, bias=s)


def _stats(s: Tensor, p: Tensor, seen: Tensor) -> Stats:
    """Statistics of rows whose logits and weights [B,H,Q,K] are there already."""
    top, argmax = s.max(-1)
    return Stats(
        entropy=torch.special.entr(p).sum(-1),
        lse=s.logsumexp(-1),
        max_logit=top,
        argmax=argmax,
        collision=p.square().sum(-1),
        visible=seen.sum(-1),
    )


def _without_padding(mask: ModelMask) -> ModelMask:
    """The mask without queries that the innermost transformers model was told to be padding.

    A mask that shows every query its own key, as that of XLNet does, does not tell.
    """
    if torch.compiler.is_compiling():
        return mask
    model = next((m for m in reversed(STATE.running) if huggingface.is_one(m)), None)
    owner, extent = owner_of(model), mask.seen.extent
    tokens = None if owner is None else owner.tokens
    if tokens is None or tuple(tokens.shape) != (extent.batch, extent.queries):
        return mask
    real = (tokens != 0)[:, None]
    return replace(mask, counted=real if mask.counted is None else mask.counted & real)


def _attends(module: nn.Module, logits: Tensor) -> bool:
    """Is a softmax of a steered module one of attention?"""
    changes = changes_of(module)
    if not changes:
        return False
    named = candidates.looks_like_attention(changes[0].touch.name, module)
    return (named and logits.dim() > 3) or _four(module, logits, named=named) is not None


def _four(module: nn.Module, logits: Tensor, *, named: bool) -> tuple[int, int, int, int] | None:
    """[B,H,Q,K] of attention logits; None if they do not look like it."""
    if logits.dim() == 4 and logits.numel():
        batch, heads, queries, keys = logits.shape
        known = (candidates.heads_of(module) or heads) if named else heads
        return (batch, heads, queries, keys) if heads == known else None
    if logits.dim() != 3 or not named or not logits.numel():
        return None
    both, queries, keys = logits.shape
    count = candidates.heads_of(module) or 1
    heads = count if both % count == 0 else 1
    return both // heads, heads, queries, keys


def _odd(module: nn.Module, logits: Tensor) -> str:
    heads = candidates.heads_of(module) or "H"
    return f"a softmax of shape {list(logits.shape)} where [B,{heads},Q,K] was expected"
