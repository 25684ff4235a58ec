"""key_mass(): the attention that each key receives."""

from typing import Unpack

import torch
from torch import Tensor

from attentropy.attention.attend import is_empty, widened
from attentropy.attention.choice import choose
from attentropy.attention.hooks import changed
from attentropy.core.resolve import AttendOptions, check_tensors, options_of, resolve


def key_mass(
    q: Tensor, k: Tensor, *, kernel: str = "auto", **options: Unpack[AttendOptions]
) -> Tensor:
    """sum_i w_ij, the attention that each key receives, [B,H,K], in O(n) memory.

    It has no gradient. Under torch.compile it is part of the graph.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D]; Hk divides H.
        kernel: as in attend(); every kernel has it.
        options: mask, score, scale, weights, bias, softcap, sink and dropout, as in attend().

    Returns:
        [B,H,K] in float32, or float64 for float64 inputs.

    >>> q = torch.ones(1, 1, 2, 8)
    >>> key_mass(q, q, mask=lambda b, h, q, k: k <= q)
    tensor([[[1.5000, 0.5000]]])
    """
    check_tensors(q, k, k)
    with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
        call, chosen = changed(
            q, k, options_of(options), lambda q, k, asked: choose(resolve(q, k, k, asked), kernel)
        )
        if is_empty(call) or call.q.is_meta:
            return call.scale.new_zeros(*call.q.shape[:2], call.k.shape[2])
        return chosen.key_mass(widened(call))
