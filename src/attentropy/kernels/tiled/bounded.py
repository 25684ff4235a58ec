"""Rows of calls whose logits are bounded products: in bits, and mostly about 0.

Where nothing but scale * q . k makes a logit, |s| <= max |scale| max |q| max |k|. With such a
bound b = s / log 2 comes out of the product itself, 2^b = e^s is one pass of exp2 (a third of
the time of torch.exp and half that of softmax on some processors), and where the bound is small
no maximum is subtracted first:

    l = sum 2^b,  t = sum b 2^b,  u = sum (b - t/l)^2 2^b,  c = sum 4^b,  o = sum 2^b v.
"""

import math
from functools import partial

import torch
from torch import Tensor

from attentropy.core.call import Call
from attentropy.core.states import blind, pivot
from attentropy.core.weights import Gumbel
from attentropy.kernels.tiled import tiles
from attentropy.kernels.tiled.means import Means, collect, moments, rest, top_of, without_blind
from attentropy.kernels.tiled.tiles import RowBlock, Tiler, dropped, logits, mix

BIT = math.log(2.0)
# beyond it numbers that are exact in nats are not in bits, and it shows in the entropy
REACH = 64.0
_NEAR = 16.0
_LARGE = 1 << 20
_HUGE = 1e37


def reach(call: Call) -> float:
    """A bound of |s|, or infinity for calls that are not served here.

    Those are small, or on another device, or of rows that take several tiles; or they add to
    the product; or their values are so large that o overflows where out does not.
    """
    others = (call.softcap, call.bias, call.relative, call.slopes, call.additive)
    plain = all(x is None for x in others) and not isinstance(call.weights, Gumbel)
    rows, keys = math.prod(call.q.shape[:3]), call.k.shape[2]
    fits = rows * keys >= _LARGE and keys <= tiles.MAX_KEYS
    if not plain or not fits or call.q.device.type != "cpu":
        return math.inf
    bound = _longest(call.q) * _longest(call.k) * _size(call.scale)
    moderate = bound <= REACH and _size(call.v) * keys * math.exp(min(bound, _NEAR)) <= _HUGE
    return bound if moderate else math.inf


def _longest(x: Tensor) -> float:
    wide = torch.promote_types(x.dtype, torch.float32)
    return float(torch.linalg.vector_norm(x.detach(), dim=-1, dtype=wide).amax())


def _size(x: Tensor) -> float:
    low, high = x.detach().aminmax()
    return max(-float(low), float(high))


def rows(tiler: Tiler, *, bound: float) -> Means:
    """Means of all rows; `tiler` gives products in bits."""
    m, more, t, spread, norm, out, argmax = collect(
        tiler, partial(_block, tiler, near=bound <= _NEAR)
    )
    m, t, spread = m * BIT, t.mul_(BIT), spread.mul_(BIT**2)
    found = Means(m, more, t, spread, norm, out, argmax)
    return without_blind(found) if m.isneginf().any() else found


def _block(tiler: Tiler, block: RowBlock, *, near: bool) -> tuple[Tensor, ...]:
    """Means of a block of rows in bits."""
    ranges = tiler.key_ranges(block)
    if not ranges:
        b, h, r = block.count
        state = blind((b * h, tiler.group * r), tiler.v.shape[-1], like=tiler.q)
        return *state[:6], state.argmax
    (keys,) = ranges
    s = logits(tiler, block, keys)
    m, argmax = top_of(tiler, block, keys, s)
    z = s if near else s.sub_(pivot(m)[..., None])
    e = torch.exp2(z, out=tiler.buffer("weights", tuple(z.shape)))
    factors = dropped(tiler, block, keys)
    o = mix(e if factors is None else e * factors, tiler, block, keys)
    l, norm = e.sum(-1), torch.linalg.vector_norm(e, dim=-1)
    if near:
        z.sub_(pivot(m)[..., None])  # means about 0 would lose digits
    if tiler.hides:
        z.clamp_(min=-1e4)  # e is 0 there; 0 * -inf would be NaN
    more = rest(e, argmax, l)
    t, spread = moments(tiler, z, e, l)
    if keys.start:
        argmax.add_(keys.start)
    return m, more, t, spread, norm.div_(l), o.div_(l[..., None]), argmax
