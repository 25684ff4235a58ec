"""The definition: dense, float64, plain autograd. Never optimise it.

Every other kernel is tested against this one. It serves every call.
"""

import torch
from torch import Tensor
from torch._guards import detect_fake_mode

from attentropy.core.call import Call, Rows, is_noise
from attentropy.core.weights import (
    L1,
    L2,
    Decay,
    Gumbel,
    Hard,
    Kernelised,
    ReluSquared,
    RowWeights,
    own,
    squares,
)
from attentropy.kernels import noise
from attentropy.kernels.autograd import mixed
from attentropy.kernels.mass import receiving, shares
from attentropy.kernels.tiled.ties import by_keys, floor, lowest_of_equal

name = "reference"


def lacks(call: Call) -> str | None:
    """None: it serves every call.

    Args:
        call: a resolved call.
    """
    return None


def attend(call: Call) -> Rows:
    """Output and statistics of every row, by materialising everything in float64.

    Args:
        call: a resolved call.
    """
    hidden = ~call.seen.dense()
    weighed, rows = _weighed(call, hidden)
    return rows._replace(out=_mix(call, weighed, hidden).to(call.v.dtype))


def key_mass(call: Call) -> Tensor:
    """What each key receives: the sum of its weights over all rows, [B,H,K].

    Args:
        call: a resolved call.
    """
    with torch.no_grad():
        call = receiving(call)
        mass = weights(call).sum(2)
    return mass.to(call.v.dtype)


def weights(call: Call) -> Tensor:
    """What each value is multiplied by, [B,H,Q,K] in float64; differentiable.

    Args:
        call: a resolved call.
    """
    weighed, rows = _weighed(call, ~call.seen.dense())
    return _dropped(call, weighed) * shares(call, rows)[..., :1]


def _weighed(call: Call, hidden: Tensor) -> tuple[Tensor, Rows]:
    """Weights [B,H,Q,K] in float64, and statistics; the output is one in every entry."""
    s = logits(call, hidden)
    if isinstance(call.weights, RowWeights):
        weighed, rows = _by_rows(call, call.weights, s, hidden)
    elif call.weights.probabilities:
        weighed, rows = _probabilities(call, s.masked_fill(hidden, -torch.inf), hidden)
    else:
        weighed, rows = _other(call, s, hidden)
    wide = torch.float64 if call.v.dtype == torch.float64 else torch.float32
    stats = (x.to(wide) if x is not None and x.is_floating_point() else x for x in rows[1:])
    one = call.v.new_ones(*call.q.shape[:3], call.v.shape[3])
    rows = Rows(one, *stats)  # type: ignore[arg-type]
    if rows.varentropy is not None and rows.entropy is not None:  # the smaller underflows first
        flat = rows.varentropy.masked_fill(rows.entropy == 0, 0.0)
        rows = rows._replace(varentropy=flat)
    return weighed, rows


def logits(call: Call, hidden: Tensor) -> Tensor:
    """Final logits [B,H,Q,K] in float64; of a hidden pair anything, without a gradient.

    Args:
        call: a resolved call.
        hidden: bool [B,H,Q,K], True where a key is hidden.
    """
    s = call.scale.double()[..., None].masked_fill(hidden, 0.0) * _product(call, hidden)
    if call.softcap is not None:
        s = call.softcap * (s / call.softcap).tanh()
    where = call.seen.where
    distance = where.k - where.position
    if call.bias is not None:
        s = s + call.bias.double()
    if call.relative is not None:
        reach = call.relative.shape[-1] // 2
        column = distance.clamp(-reach, reach)[0, 0] + reach
        s = s + call.relative.double()[:, column]
    if call.slopes is not None:
        s = s - call.slopes.double().view(-1, 1, 1) * distance.abs()
    return s


def _product(call: Call, hidden: Tensor) -> Tensor:
    """The score of every pair; those of hidden ones are 0 where 0 * NaN could reach a gradient."""
    q, k = call.q.double(), _per_query_head(call.k, call.q.shape[1]).double()
    if call.additive is None and _finite(q, k):
        return q @ k.mT
    q, k = (x.masked_fill(hidden[..., None], 0.0) for x in (q[:, :, :, None], k[:, :, None]))
    if call.additive is None:
        return (q * k).sum(-1)
    return ((q + k).tanh() * call.additive.double()[:, None, None, :]).sum(-1)


def _per_query_head(x: Tensor, heads: int) -> Tensor:
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], 1)


def _probabilities(call: Call, s: Tensor, hidden: Tensor) -> tuple[Tensor, Rows]:
    if isinstance(call.weights, Gumbel):
        drawn = noise.gumbel(_seed(call), call.seen.where, dtype=torch.float64)
        s = (s + drawn) / call.weights.tau
    m, argmax = _top(call, s, hidden)
    unseen = hidden.all(-1)
    z, log_l = _about_top(s.masked_fill(unseen[..., None], 0.0), argmax)
    log_p = (z - log_l[..., None]).masked_fill(unseen[..., None], -torch.inf)
    p = log_p.exp().masked_fill(hidden, 0.0)
    # not torch.special.entr: its gradient is NaN at p = 0
    log_p = log_p.masked_fill(p == 0, 0.0)
    entropy = -(p * log_p).sum(-1)
    z = (s - m[..., None]).masked_fill(p == 0, 0.0)
    varentropy = (p * (z - (p * z).sum(-1, keepdim=True)).square()).sum(-1)
    top = s.gather(-1, argmax.clamp(min=0)[..., None])[..., 0]
    lse = torch.where(m.isinf(), top, top + log_l).masked_fill(unseen, -torch.inf)
    collision = p.square().sum(-1)
    p, hard = _hardened(call, p, argmax)
    if hard:
        entropy, lse, collision = 0 * entropy.detach(), m, (~unseen).double()
        varentropy = entropy
    log_l = (lse - m if hard else log_l).masked_fill(unseen, 0.0)
    return p, Rows(p, entropy, lse, m, argmax, collision, log_l=log_l, varentropy=varentropy)


def _about_top(s: Tensor, argmax: Tensor) -> tuple[Tensor, Tensor]:
    """s - m, and log l = log(1 + sum of e^(s - m) without the key of m), to its own digits."""
    key = argmax.clamp(min=0)[..., None]
    top = s.gather(-1, key)
    z = s - top
    bad = (top - top)[..., 0].detach()  # NaN where the largest is infinite
    return z, (z.exp().scatter(-1, key, 0.0).sum(-1) + bad).log1p()


def _top(call: Call, s: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """The largest visible logit, and the first key that has it; -inf and -1 for a blind row."""
    s = s.detach().masked_fill(hidden, -torch.inf)
    m, argmax = s.max(-1)
    if by_keys(call):
        near = (s >= floor(m)[..., None]).to(torch.uint8).argmax(-1)
        k = _per_query_head(call.k.detach(), call.q.shape[1])
        argmax = lowest_of_equal(s, m, argmax, near, k)
    # where visible logits are -inf too, max() may name a hidden key
    argmax = torch.where(m.isneginf(), (~hidden).to(torch.uint8).argmax(-1), argmax)
    return m, argmax.masked_fill(hidden.all(-1), -1)


def _seed(call: Call) -> int:
    return 0 if call.seed is None else int(call.seed)


def _hardened(call: Call, p: Tensor, argmax: Tensor) -> tuple[Tensor, bool]:
    """One-hot weights for Hard and for hard Gumbel, which pass the gradient of the soft ones."""
    if isinstance(call.weights, Hard):
        through = call.weights.straight_through
    elif isinstance(call.weights, Gumbel) and call.weights.hard:
        through = True
    else:
        return p, False
    one_hot = (torch.arange(p.shape[-1], device=p.device) == argmax[..., None]).to(p.dtype)
    return one_hot + (p - p.detach() if through else 0.0), True


def _other(call: Call, s: Tensor, hidden: Tensor) -> tuple[Tensor, Rows]:
    weights = call.weights
    m, argmax = _top(call, s, hidden)
    if isinstance(weights, Decay):
        w = call.seen.where
        rate = weights.of_heads(call.q.shape[1], like=s).view(-1, 1, 1)
        s = rate ** (w.position - w.k).clamp(min=0)
    weigh = own(weights)
    f = weigh(s) if weigh is not None else s.relu().square() if squares(weights) else s
    f = f.masked_fill(hidden, 0.0)
    if isinstance(weights, L1 | L2):
        norm = torch.linalg.vector_norm(f.detach(), dim=-1, keepdim=True)
        f = f.masked_fill(is_noise(call, norm[..., 0])[..., None], 0.0)
    a = f * _norm(call, f)[..., None]
    collision, mass = a.square().sum(-1), a.abs().sum(-1)
    return a, Rows(a, None, None, m, argmax, collision, mass)


def _by_rows(call: Call, weights: RowWeights, s: Tensor, hidden: Tensor) -> tuple[Tensor, Rows]:
    m, argmax = _top(call, s, hidden)
    p = weights.of_rows(s.masked_fill(hidden, -torch.inf)).masked_fill(hidden, 0.0)
    collision = p.square().sum(-1)
    if not weights.probabilities:
        return p, Rows(p, None, None, m, argmax, collision, p.abs().sum(-1))
    log_p = p.masked_fill(p == 0, 1.0).log()
    entropy = -(p * log_p).sum(-1)
    varentropy = (p * (log_p + entropy[..., None]).square()).sum(-1)
    return p, Rows(p, entropy, None, m, argmax, collision, varentropy=varentropy)


def _norm(call: Call, f: Tensor) -> Tensor:
    """What each row of unnormalised weights is multiplied by; 0 for rows of zeros."""
    match call.weights:
        case L1() | Kernelised():
            size = f.abs().sum(-1)
        case L2():
            square = f.square().sum(-1)
            size = square.masked_fill(square == 0, 1.0).sqrt().masked_fill(square == 0, 0.0)
        case ReluSquared():
            size = call.visible.double().expand(f.shape[:-1])
        case _:
            size = torch.ones_like(f[..., 0])
    return (1 / size.masked_fill(size == 0, 1.0)).masked_fill(size == 0, 0.0)


def _mix(call: Call, weights: Tensor, hidden: Tensor) -> Tensor:
    """sum_j weights_ij v_j over the visible keys; a hidden NaN stays hidden."""
    weights = _dropped(call, weights)
    v = _per_query_head(call.v, call.q.shape[1]).double()
    if _finite(weights, v):
        return mixed(weights, v, hidden)
    seen = v[:, :, None].masked_fill(hidden[..., None], 0.0)
    return (weights[..., None] * seen).sum(-2)


def _dropped(call: Call, weights: Tensor) -> Tensor:
    """Weights after dropout."""
    if not call.dropout:
        return weights
    where = call.seen.where
    return weights * noise.kept(_seed(call), where, rate=call.dropout, dtype=weights.dtype)


def _finite(*tensors: Tensor) -> bool:
    """Whether there is no NaN and no infinity.

    Values cannot be asked for under torch.compile and in torch.func transforms: there may be one.
    Fake tensors have none.
    """
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    if detect_fake_mode(tensors) is not None:
        return True
    return all(bool(x.isfinite().all()) for x in tensors)
