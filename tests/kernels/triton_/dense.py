"""The same attention, dense and in float64: what the Triton kernels are held against."""

from typing import NamedTuple

import torch

NAMES = ("out", "entropy", "lse", "collision")


class Dense(NamedTuple):
    out: torch.Tensor
    entropy: torch.Tensor
    lse: torch.Tensor
    max_logit: torch.Tensor
    argmax: torch.Tensor
    collision: torch.Tensor


def seen_and_logits(q, k, *, scale, lo, hi, mask, bias, relative, slopes, softcap):
    B, H, Q, _ = q.shape
    K = k.shape[2]
    k = k.repeat_interleave(H // k.shape[1], 1)
    x = torch.einsum("bhid,bhjd->bhij", q, k) * scale.expand(B, H, Q)[..., None]
    s = x if not softcap else softcap * torch.tanh(x / softcap)
    j = torch.arange(K)
    d = j - (torch.arange(Q)[:, None] + K - Q)
    seen = torch.ones(B, H, Q, K, dtype=torch.bool)
    if lo is not None:
        seen = seen & (j >= lo.expand(B, H, Q)[..., None])
    if hi is not None:
        seen = seen & (j < hi.expand(B, H, Q)[..., None])
    if mask is not None:
        seen = seen & mask
    if bias is not None:
        seen = seen & (bias != -torch.inf)
        s = s + bias.masked_fill(bias == -torch.inf, 0.0)
    if relative is not None:
        reach = relative.shape[1] // 2
        s = s + relative[:, d.clamp(-reach, reach) + reach]
    if slopes is not None:
        s = s - slopes[:, None, None] * d.abs()
    return seen, s


def dense(q, k, v, *, scale, lo=None, hi=None, mask=None, bias=None, relative=None, slopes=None,
          sink=None, softcap=0.0, gain=None):  # fmt: skip
    """Every input in the dtype of the computation; `gain` [B,H,Q,K] multiplies the weights."""
    seen, s = seen_and_logits(
        q, k, scale=scale, lo=lo, hi=hi, mask=mask, bias=bias, relative=relative, slopes=slopes,
        softcap=softcap,
    )  # fmt: skip
    H = q.shape[1]
    s = s.masked_fill(~seen, -torch.inf)
    max_logit, argmax = s.max(-1) if s.shape[-1] else (s.new_full(s.shape[:3], -torch.inf),) * 2
    argmax = argmax.long().masked_fill(~seen.any(-1), -1)
    if sink is not None:
        s = torch.cat([s, sink[:, None, None].expand(*s.shape[:3], 1)], -1)
    blind = (s == -torch.inf).all(-1)
    safe = s.masked_fill(blind[..., None], 0.0)
    log_p = safe.log_softmax(-1)
    p = log_p.exp().masked_fill(blind[..., None], 0.0)
    entropy = -(p * log_p.masked_fill(p == 0, 0.0)).sum(-1)
    lse = safe.logsumexp(-1).masked_fill(blind, -torch.inf)
    w = p[..., : v.shape[2]]
    w = w if gain is None else w * gain
    v = v.repeat_interleave(H // v.shape[1], 1)
    out = torch.einsum("bhij,bhjd->bhid", w, v)
    return Dense(out, entropy, lse, max_logit, argmax, (p * p).sum(-1))
