"""Equal keys have equal scores, but a product of matrices may round them apart.

BLAS sums the last columns of a matrix in another order than the others, so that the largest logit
may stand at a copy of the key that has it first.
"""

import torch
from torch import Tensor

from attentropy.core.call import Call
from attentropy.core.weights import Gumbel

_SLACK = 64  # units of rounding; too many cost nothing but time, since keys are compared


def by_keys(call: Call) -> bool:
    """Whether logits of a row differ by their keys only, and are products of matrices.

    Args:
        call: a resolved call.
    """
    others = (call.bias, call.relative, call.slopes, call.additive)
    return all(x is None for x in others) and not isinstance(call.weights, Gumbel)


def floor(m: Tensor) -> Tensor:
    """What logits that equal m but for rounding do not fall below.

    Args:
        m: largest logits.
    """
    return m - _SLACK * torch.finfo(m.dtype).eps * (1 + m.abs())


def lowest_of_equal(s: Tensor, m: Tensor, argmax: Tensor, near: Tensor, k: Tensor) -> Tensor:
    """`near` where it is a visible copy, before `argmax`, of the same key; else `argmax`.

    Args:
        s: logits [...,R,T], -inf where a key is hidden.
        m: the largest ones, [...,R].
        argmax: where they are; -1 for a row that sees nothing.
        near: the first key whose logit is not below `floor(m)`.
        k: the keys [...,T,D].
    """
    there, here = (_taken(k, index) for index in (near, argmax.clamp(min=0)))
    reached = s.gather(-1, near[..., None])[..., 0] >= floor(m)
    return torch.where((near < argmax) & reached & (there == here).all(-1), near, argmax)


def _taken(k: Tensor, index: Tensor) -> Tensor:
    return k.gather(-2, index[..., None].expand(*index.shape, k.shape[-1]))
