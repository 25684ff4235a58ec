"""Dense attention maps by definition, to compare with."""

import torch

import attentropy as at

CASES = {
    "full": {},
    "causal": {"mask": at.causal},
    "window": {"mask": at.causal & at.lookback(3)},
    "log length": {"mask": at.causal, "scale": at.LogLength(4.0)},
    "bias": {"bias": at.ALiBi()},
    "softcap": {"softcap": 1.5},
    "cosine": {"score": at.Cosine()},
    "blind": {"mask": at.causal & ~at.prefix(2)},
}


def tensors(batch=2, heads=4, kv_heads=2, queries=11, keys=11, width=6, values=3, size=1.0):
    generator = torch.Generator().manual_seed(1)

    def draw(h, n, d):
        return size * torch.randn(batch, h, n, d, generator=generator, dtype=torch.double)

    return draw(heads, queries, width), draw(kv_heads, keys, width), draw(kv_heads, keys, values)


def weights(q, k, **options):
    """p [B,H,Q,K], as the output for values that are the identity."""
    one = torch.eye(k.shape[2], dtype=k.dtype).expand(*k.shape[:2], -1, -1)
    return at.attend(q, k, one, kernel="reference", **options).out


def entropy(p):
    return torch.special.entr(p).sum(-1)
