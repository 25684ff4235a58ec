"""Attention in linear time, where the weights allow it: Kernelised and Decay.

Both are sums over the keys seen so far, taken by chunks: inside a chunk by a small triangular
product, across chunks by what the chunks before left behind. Plain differentiable torch.

    Kernelised  out_i = phi(q_i) . sum_j phi(k_j) v_j / phi(q_i) . sum_j phi(k_j)
    Decay       out_i = rate * out_(i-1) + v_i
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from attentropy.core.call import Call, Rows
from attentropy.core.weights import Decay, Kernelised
from attentropy.kernels.autograd import lower_product
from attentropy.kernels.mass import receiving

name = "linear"
CHUNK = 128


def lacks(call: Call) -> str | None:
    """What keeps it from serving the call; it takes Kernelised and Decay, unmasked or causal.

    Args:
        call: a resolved call.
    """
    if not isinstance(call.weights, Kernelised | Decay):
        return f"{type(call.weights).__name__} weights (only Kernelised and Decay)"
    if call.dropout:
        return "dropout"
    if call.seen.shape == "other" or call.bias is not None:
        return "masks other than full and causal"
    return None


def attend(call: Call) -> Rows:
    """Output, mass and collision of every row.

    Args:
        call: a resolved call.
    """
    # statistics are float32 or better, whatever the inputs are
    with torch.autocast(call.q.device.type, enabled=False):
        if isinstance(call.weights, Decay):
            return _decayed(call, call.weights)
        return _kernelised(call)


def key_mass(call: Call) -> Tensor:
    """sum_i w_ij [B,H,K]: the same sums, over the queries that come after a key.

    Args:
        call: a resolved call.
    """
    with torch.no_grad(), torch.autocast(call.q.device.type, enabled=False):
        call = receiving(call)
        if isinstance(call.weights, Decay):
            return _decayed_mass(call, call.weights)
        return _kernelised_mass(call)


def _kernelised_mass(call: Call) -> Tensor:
    causal = call.seen.shape == "causal"
    q, k, n1 = call.q, call.k, _sizes(call)
    w = n1.masked_fill(n1 == 0, 1.0).reciprocal().masked_fill(n1 == 0, 0.0)[..., None]
    if not causal:
        return _full_product(k, q, w)[..., 0]
    # queries before the first key see nothing; then turned around, a key comes after its queries
    q, w = (x[:, :, max(0, q.shape[2] - k.shape[2]) :].flip(2) for x in (q, w))
    behind = k.shape[2] - q.shape[2]
    q, w = (F.pad(x, (0, 0, 0, behind)) for x in (q, w))
    return _causal_product(k.flip(2), q, w).flip(2)[..., 0]


def _sizes(call: Call) -> Tensor:
    """sum_j phi(q_i) . phi(k_j), [B,H,Q]."""
    over = _causal_product if call.seen.shape == "causal" else _full_product
    return over(call.q, call.k, call.v)[..., 0]


def _kernelised(call: Call) -> Rows:
    """Phi is applied already: q and k are non-negative features."""
    wide = torch.float64 if call.q.dtype == torch.float64 else torch.float32
    group = call.q.shape[1] // call.k.shape[1]
    q, k, v = (x.to(wide) for x in (call.q, call.k, call.v))
    k, v = (x.repeat_interleave(group, 1) if group > 1 else x for x in (k, v))
    one = torch.ones_like(v[..., :1])
    over = _causal_product if call.seen.shape == "causal" else _full_product
    mixed = over(q, k, torch.cat([v, one], -1))
    o, n1 = mixed[..., :-1], mixed[..., -1]
    none = n1 == 0
    n1 = n1.masked_fill(none, 1.0)
    out = (o / n1[..., None]).masked_fill(none[..., None], 0.0).to(call.v.dtype)
    # sum_j (q . k_j)^2 = q . sum_j k_j (k_j . q); squares of small features need a wide range
    if q.device.type != "mps":
        q, k, n1 = q.double(), k.double(), n1.double()
    collision = ((over(q, k, k) * q).sum(-1) / n1.square()).to(wide).masked_fill(none, 0.0)
    return Rows(out, None, None, None, None, collision, (~none).to(wide))


def _full_product(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """sum_j (q_i . k_j) v_j over all keys."""
    return q @ (k.mT @ v)


def _causal_product(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """sum_j (q_i . k_j) v_j over keys up to the position of the query."""
    queries, keys = q.shape[2], k.shape[2]
    lead = keys - queries
    q = F.pad(q, (0, 0, lead, 0)) if lead >= 0 else q[:, :, -lead:]
    qc, kc, vc = (_chunked(x) for x in (q, k, v))
    inside = lower_product((qc @ kc.mT).tril(), vc)
    left = (kc.mT @ vc).cumsum(2)
    before = F.pad(left[:, :, :-1], (0, 0, 0, 0, 1, 0))
    out = (inside + qc @ before).flatten(2, 3)[:, :, :keys]
    return out[:, :, lead:] if lead >= 0 else F.pad(out, (0, 0, -lead, 0))


def _chunked(x_BHND: Tensor) -> Tensor:
    """[B,H,N,D] as [B,H,N/CHUNK,CHUNK,D], padded with zeros at the end."""
    pad = -x_BHND.shape[2] % CHUNK
    return F.pad(x_BHND, (0, 0, 0, pad)).unflatten(2, (-1, CHUNK))


def _decayed(call: Call, weights: Decay) -> Rows:
    wide = torch.float64 if call.v.dtype == torch.float64 else torch.float32
    batch, heads, queries, _ = call.q.shape
    keys = call.k.shape[2]
    v = call.v.to(wide).repeat_interleave(heads // call.v.shape[1], 1)
    rate = weights.of_heads(heads, like=v)
    one = torch.ones(1, heads, keys, 1, dtype=wide, device=v.device)
    out, mass, collision = (
        _aligned(recurrence(x, r), queries)
        for x, r in ((v, rate), (one, rate), (one, rate.square()))
    )
    rows = (batch, heads, queries)
    return Rows(
        out.to(call.v.dtype), None, None, None, None,
        collision[..., 0].expand(rows), mass[..., 0].expand(rows),
    )  # fmt: skip


def _decayed_mass(call: Call, weights: Decay) -> Tensor:
    """m_j = rate * m_(j+1) + [a query stands at j], from the last key to the first."""
    (batch, heads, queries, _), keys = call.q.shape, call.k.shape[2]
    one = call.v.new_ones(1, heads, keys, 1)
    stands = one.masked_fill(torch.arange(keys, device=one.device)[:, None] < keys - queries, 0.0)
    mass = recurrence(stands.flip(2), weights.of_heads(heads, like=one)).flip(2)
    return mass[..., 0].expand(batch, heads, keys)


def _aligned(x: Tensor, queries: int) -> Tensor:
    """The last rows, one for each query; queries before the first key get zeros."""
    lead = x.shape[2] - queries
    return x[:, :, lead:] if lead >= 0 else F.pad(x, (0, 0, -lead, 0))


def recurrence(x_BHND: Tensor, rate_H: Tensor) -> Tensor:
    """y_i = rate * y_(i-1) + x_i, with y_(-1) = 0; carries go through the same recurrence.

    Args:
        x_BHND: x.
        rate_H: the rate of each head.
    """
    n = x_BHND.shape[2]
    step = torch.arange(min(n, CHUNK), device=x_BHND.device)
    gap = step[:, None] - step
    powers = (rate_H.view(-1, 1, 1) ** gap.clamp(min=0)).masked_fill(gap < 0, 0.0)
    if n <= CHUNK:
        return lower_product(powers, x_BHND)
    local = lower_product(powers[:, None], _chunked(x_BHND))
    ends = recurrence(local[:, :, :, -1], rate_H**CHUNK)
    carried = F.pad(ends[:, :, :-1], (0, 0, 1, 0))[:, :, :, None]
    reach = rate_H.view(-1, 1, 1, 1) ** (step + 1).view(-1, 1)
    return (local + reach * carried).flatten(2, 3)[:, :, :n]
