"""Additive, cosine and linear attention against what they are written as."""

import pytest
import torch
import torch.nn.functional as F

import attentropy as at

nn = at.nn


def heads(x, number):
    return x.unflatten(-1, (number, -1)).transpose(1, 2)


def test_additive_attention_is_bahdanau():
    layer = nn.AdditiveAttention(16, 2, mask=at.causal)
    x = torch.randn(2, 6, 16)
    q, k, v = (
        heads(y, 2) for y in F.linear(x, layer.in_proj_weight, layer.in_proj_bias).chunk(3, -1)
    )
    pairs = (q[:, :, :, None] + k[:, :, None]).tanh()
    s = torch.einsum("bhqkd,hd->bhqk", pairs, layer.score.vector)
    p = s.masked_fill(~torch.ones(6, 6).tril().bool(), -torch.inf).softmax(-1)
    want = layer.out_proj((p @ v).transpose(1, 2).flatten(2))
    out, stats = layer(x)
    torch.testing.assert_close(out, want)
    bound = layer.score.vector.abs().sum(-1)
    assert (stats.max_logit.abs() <= bound.view(1, -1, 1)).all()


def test_cosine_attention_bounds_logits_by_its_scale():
    layer = nn.CosineAttention(16, 2)
    _, stats = layer(100 * torch.randn(2, 6, 16))
    assert stats.max_logit.max() <= 10 + 1e-4
    assert list(layer.state_dict()) == [
        "in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias", "scale.log_gain"
    ]  # fmt: skip
    assert nn.CosineAttention(16, 2, scale=3.0).scale == 3.0


@pytest.mark.parametrize("mask", [None, at.causal])
def test_linear_attention_is_its_formula(mask):
    layer = nn.LinearAttention(16, 2, mask=mask)
    x = torch.randn(2, 6, 16)
    q, k, v = (
        heads(y, 2) for y in F.linear(x, layer.in_proj_weight, layer.in_proj_bias).chunk(3, -1)
    )
    w = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
    w = w if mask is None else w.tril()
    p = w / w.sum(-1, keepdim=True)
    want = layer.out_proj((p @ v).transpose(1, 2).flatten(2))
    out, stats = layer(x)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(stats.collision, p.square().sum(-1))
    with pytest.raises(ValueError, match="feature must be a function or one of"):
        nn.LinearAttention(16, 2, feature="gelu")
