"""Rows that are nothing but the rounding of their scores."""

import torch
from torch import Tensor

from attentropy.core.call import Call
from attentropy.core.weights import squares


def is_noise(call: Call, norm_BHQ: Tensor) -> Tensor:
    """Whether a row of weights is no larger than the rounding of scores that are 0, bool [B,H,Q].

    L1 and L2 would blow such a row up to the size of any other. Scores are sums of D products in
    float64, so the weights of such a row are at most D eps |scale| max |q| max |k| each.

    Args:
        call: a resolved call.
        norm_BHQ: sqrt(sum f^2) of the unnormalised weights f of each row.
    """
    q, k = (_largest(x) for x in (call.q, call.k))
    if call.additive is not None:
        product = call.additive.detach().double().abs().sum(-1).view(1, -1, 1)
    else:
        key_heads = k.amax(2, keepdim=True).repeat_interleave(q.shape[1] // k.shape[1], 1)
        product = q * key_heads * q.new_tensor(call.q.shape[3])
    least = call.scale.detach().double().abs() * product * torch.finfo(torch.float64).eps
    least = least.square() if squares(call.weights) else least
    return norm_BHQ <= least * call.k.shape[2] ** 0.5


def _largest(x_BHND: Tensor) -> Tensor:
    """The largest |x| of each row in float64, NaN and infinities apart, [B,H,N]."""
    return x_BHND.detach().double().nan_to_num(0.0, 0.0, 0.0).abs().amax(-1)
