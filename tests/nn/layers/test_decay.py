"""A moving average of known sparsity."""

import math

import pytest
import torch

import attentropy as at

nn = at.nn


def heads(x, number):
    return x.unflatten(-1, (number, -1)).transpose(1, 2)


def test_decay_attention_is_a_moving_average_of_known_sparsity():
    layer = nn.DecayAttention(16, 2, rate=0.7)
    x = torch.randn(2, 9, 16)
    v = heads(layer.v_proj(x), 2)
    age = torch.arange(9)[:, None] - torch.arange(9)
    p = (0.7 ** age.clamp(min=0)).tril()
    p = p / p.sum(-1, keepdim=True)
    want = layer.out_proj((p @ v).transpose(1, 2).flatten(2))
    out, stats = layer(x)
    torch.testing.assert_close(out, want)
    half = -math.log(0.7) / 2
    known = math.sqrt(math.tanh(9 * half) / (9 * math.tanh(half)))
    assert stats.sparsity[0, 0, -1].item() == pytest.approx(known, rel=1e-5)
    cache = nn.KVCache()
    steps = torch.cat([layer(part, cache=cache).out for part in x.split(4, 1)], 1)
    torch.testing.assert_close(steps, out)
    again, weights = layer(x, need_weights=True)
    torch.testing.assert_close(weights.as_subclass(torch.Tensor), p.expand(2, 2, 9, 9))
    assert torch.equal(again, out)
    assert torch.equal(weights.stats.collision, stats.collision)


def test_decay_attention_starts_with_different_memories_and_refuses():
    assert nn.DecayAttention(16, 2).rate.tolist() == pytest.approx([0.5, 0.75])
    with pytest.raises(ValueError, match=r"rate must be a number in \(0, 1\), got 1.0"):
        nn.DecayAttention(16, 2, rate=1.0)
    with pytest.raises(ValueError, match=r"x must be of shape \[B,N,16\]"):
        nn.DecayAttention(16, 2)(torch.zeros(2, 3, 4))
