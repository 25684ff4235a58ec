"""Layers of the last years against their published formulas, written out in plain torch."""

import math

import pytest
import torch

import attentropy as at

nn = at.nn
X = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
HIDDEN = torch.ones(7, 7).triu(1).bool()


def heads(x, number):
    return x.unflatten(-1, (number, -1)).transpose(1, 2)


def parts(layer):
    q, k, v = (X @ layer.in_proj_weight.mT + layer.in_proj_bias).chunk(3, -1)
    return [heads(x, layer.num_heads) for x in (q, k, v)]


def joined(layer, p, v):
    return layer.out_proj((p @ v).transpose(1, 2).flatten(2))


def test_gated_attention():
    layer = nn.GatedAttention(16, 4, mask=at.causal).double()
    q, k, v = parts(layer)
    p = (q @ k.mT / 2).masked_fill(HIDDEN, -torch.inf).softmax(-1)
    gate = 1 / (1 + (-layer.gate(X)).exp())
    want = layer.out_proj((p @ v).transpose(1, 2).flatten(2) * gate)
    out, stats = layer(X)
    torch.testing.assert_close(out, want)
    out.sum().backward()
    assert layer.gate.weight.grad.abs().sum() > 0


def test_selective_attention():
    layer = nn.SelectiveAttention(16, 4).double()
    q, k, v = parts(layer)
    s = (q @ k.mT / 2).masked_fill(HIDDEN, -torch.inf)
    masked = torch.zeros(2, 7, 7, dtype=torch.float64)
    for i in range(7):
        for j in range(1, 7):
            for earlier in range(i):
                if earlier > j:
                    masked[:, i, j] += s[:, 0, earlier, j].relu()
    p = (s - masked[:, None]).softmax(-1)
    out, weights = layer(X, need_weights=True)
    torch.testing.assert_close(out, joined(layer, p, v))
    torch.testing.assert_close(weights + 0, p)
    grads = torch.autograd.grad(out.square().sum(), layer.in_proj_weight, retain_graph=True)[0]
    want = torch.autograd.grad(joined(layer, p, v).square().sum(), layer.in_proj_weight)[0]
    torch.testing.assert_close(grads, want)


def test_scale_invariant_attention():
    layer = nn.ScaleInvariantAttention(16, 4, tau=3.0).double()
    q, k, v = parts(layer)
    s = q @ k.mT / 2
    for i in range(7):
        for j in range(i + 1):
            square = 2 * (math.log((i - j) / 3 + 1) - 0.5 + 1)  # alpha = beta = sqrt(e)
            s[:, :, i, j] = math.sqrt(square) * s[:, :, i, j].clone() - square + 1
    p = s.masked_fill(HIDDEN, -torch.inf).softmax(-1)
    torch.testing.assert_close(layer(X).out, joined(layer, p, v))
    last = layer(X[:, -2:], X).out
    torch.testing.assert_close(last, layer(X).out[:, -2:])


def test_differential_attention():
    layer = nn.DifferentialAttention(16, 2, depth=3, mask=at.causal).double()
    q, k, v = (
        heads(proj(X), n) for proj, n in zip((layer.q_proj, layer.k_proj, layer.v_proj), (4, 4, 2))
    )
    p = (q @ k.mT / 2).masked_fill(HIDDEN, -torch.inf).softmax(-1)
    first = 0.8 - 0.6 * math.exp(-0.9)
    q1, k1, q2, k2 = layer.lambdas.detach()
    share = math.exp(float(q1 @ k1)) - math.exp(float(q2 @ k2)) + first
    maps = p[:, 0::2] - share * p[:, 1::2]
    mixed = maps @ v
    normed = mixed / (mixed.square().mean(-1, keepdim=True) + 1e-5).sqrt() * (1 - first)
    out, weights = layer(X, need_weights=True)
    torch.testing.assert_close(out, layer.out_proj(normed.transpose(1, 2).flatten(2)))
    torch.testing.assert_close(weights + 0, maps)
    assert layer(X).stats.entropy.shape == (2, 4, 7)
    out.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in layer.parameters())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: nn.SelectiveAttention(16, 4, scale=1.0),
            "scale must be left out: SelectiveAttention",
        ),
        (
            lambda: nn.ScaleInvariantAttention(16, 4, tau=0),
            "tau must be finite and > 0, got 0",
        ),
        (lambda: nn.DifferentialAttention(16, 2, depth=-1), "depth must be >= 0, got -1"),
        (
            lambda: nn.DifferentialAttention(10, 2),
            "2 num_heads must be a divisor of embed_dim = 10, got 4",
        ),
        (lambda: nn.SelectiveAttention(16, 4)(X[:, :3].float(), X.float()), "keys must be as many"),
        (
            lambda: nn.SelectiveAttention(16, 4, positions=at.ALiBi())(X.float()),
            "takes no positions",
        ),
        (lambda: nn.DifferentialAttention(16, 2)(X[0]), r"x must be of shape \[B,N,16\]"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises((ValueError, at.UnsupportedError), match=message):
        make()
