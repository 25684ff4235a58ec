"""One-hot weights on top of soft ones: the value of the strongest key, straight-through gradients.

out = v[argmax] + (soft - soft.detach())
"""

import torch

from attentropy.core.call import Call, Rows
from attentropy.core.weights import Gumbel, Hard, Weights


def is_hard(weights: Weights) -> bool:
    """Whether the output takes the value of one key."""
    return isinstance(weights, Hard) or (isinstance(weights, Gumbel) and weights.hard)


def harden(call: Call, soft: Rows) -> Rows:
    """Rows of one-hot weights; `soft` was computed on values without gradient."""
    assert soft.argmax is not None
    assert soft.max_logit is not None
    unseen = soft.argmax < 0
    group = call.q.shape[1] // call.v.shape[1]
    v = call.v.repeat_interleave(group, 1) if group > 1 else call.v
    at = soft.argmax.clamp(min=0)[..., None].expand(*soft.argmax.shape, v.shape[-1])
    out = v.gather(2, at).masked_fill(unseen[..., None], 0.0)
    if isinstance(call.weights, Gumbel) or (
        isinstance(call.weights, Hard) and call.weights.straight_through
    ):
        out = out + (soft.out - soft.out.detach())
    sure = (~unseen).to(soft.collision.dtype)
    zero = torch.zeros_like(sure)
    return Rows(out, zero, soft.max_logit, soft.max_logit, soft.argmax, sure, None, zero, zero)
