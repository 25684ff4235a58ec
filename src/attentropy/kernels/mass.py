"""What each key receives: the parts of `key_mass` that kernels share."""

import torch
from torch import Tensor

from attentropy.core.call import Call, Rows
from attentropy.kernels.attended import attended


def receiving(call: Call) -> Call:
    """The call in float32 or better, with keys for every query head, and ones as values.

    Then the gradient of sum_i out_i with respect to the values, [B,H,K,1], is sum_i w_ij.

    Args:
        call: a resolved call.
    """
    group = call.q.shape[1] // call.k.shape[1]
    wide = torch.float64 if call.q.dtype == torch.float64 else torch.float32
    k = call.k.to(wide)
    k = k.repeat_interleave(group, 1) if group > 1 else k
    return call._replace(q=call.q.to(wide), k=k, v=k.new_ones(*k.shape[:3], 1))


def shares(call: Call, rows: Rows) -> Tensor:
    """What the sink leaves of an output of one, [B,H,Q,1].

    Args:
        call: a resolved call.
        rows: what a kernel returned for it.
    """
    return attended(call, rows._replace(out=torch.ones_like(rows.out))).out


def counted(call: Call, argmax: Tensor) -> Tensor:
    """The number of rows that have their largest logit at each key, [B,H,K]: one-hot weights.

    Args:
        call: a resolved call.
        argmax: [B,H,Q], -1 for rows that see nothing.
    """
    seen = (argmax >= 0).to(call.scale.dtype)
    total = seen.new_zeros(*argmax.shape[:2], call.k.shape[2])
    return total.scatter_add(2, argmax.clamp(min=0), seen)
