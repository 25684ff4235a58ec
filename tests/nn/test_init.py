"""Initial weights give the variance and the entropy that they promise."""

import pytest
import torch

import attentropy as at

nn = at.nn


def scores(layer, x):
    """Logits [B,H,N,N] of a layer with the dot score."""
    heads = layer.num_heads
    q = (x @ layer.q_weight.T).unflatten(-1, (heads, -1)).transpose(1, 2)
    k = (x @ layer.k_weight.T).unflatten(-1, (layer.num_kv_heads, -1)).transpose(1, 2)
    k = k.repeat_interleave(heads // layer.num_kv_heads, 1)
    return layer.logit_scale(x.shape[1]).view(1, -1, 1, 1) * q @ k.mT


@pytest.mark.parametrize("width", [64, 256])
@pytest.mark.parametrize("head_dim", [16, 64])
@pytest.mark.parametrize("value", [0.25, 1.0, 4.0])
def test_score_variance_holds_for_any_width(width, head_dim, value):
    layer = nn.MultiheadAttention(width, 4, head_dim=head_dim, init=nn.score_variance(value))
    x = torch.randn(4, 200, width)
    assert scores(layer, x).var().item() == pytest.approx(value, rel=0.15)


def test_score_variance_knows_scale_inputs_and_key_widths():
    init = nn.score_variance(2.0, length=100, inputs=9.0)
    layer = nn.MultiheadAttention(64, 4, num_kv_heads=2, scale=at.LogLength(2.0), init=init)
    x = 3 * torch.randn(4, 100, 64)
    assert scores(layer, x).var().item() == pytest.approx(2.0, rel=0.25)


def test_xavier_is_not_one():
    layer = nn.MultiheadAttention(256, 8)
    x = torch.randn(4, 100, 256)
    bound = (6 / (256 + 256)) ** 0.5
    assert layer.q_weight.abs().max() <= bound
    assert layer.in_proj_bias.abs().max() == 0
    assert scores(layer, x).var().item() == pytest.approx(1.0, rel=0.2)
    narrow = nn.MultiheadAttention(512, 1, head_dim=64)
    assert scores(narrow, torch.randn(4, 100, 512)).var().item() == pytest.approx(3.16, rel=0.2)


@pytest.mark.parametrize(
    "options",
    [
        {"init": nn.score_variance(1.0)},
        {"init": nn.score_variance(4.0), "num_kv_heads": 2},
        {"scale": at.LogLength(3.0)},
        {"qk_norm": "rms"},
        {"score": at.Cosine()},
    ],
    ids=["one", "four, grouped", "log length", "qk norm", "cosine"],
)
def test_expected_entropy_is_what_is_measured(options):
    layer = nn.MultiheadAttention(128, 4, **options).eval()
    with torch.no_grad():
        stats = layer(torch.randn(4, 256, 128)).stats
    expected = nn.expected_entropy(layer, 256)
    assert expected.shape == (4,)
    torch.testing.assert_close(stats.entropy.mean((0, 2)), expected, rtol=0.05, atol=0)


def test_the_bias_of_queries_counts_and_that_of_keys_does_not():
    layer = nn.MultiheadAttention(64, 4).eval()
    plain = nn.logit_spread(layer, 100)
    torch.nn.init.normal_(layer.k_bias.data)
    torch.testing.assert_close(nn.logit_spread(layer, 100), plain)
    torch.nn.init.normal_(layer.q_bias.data)
    x = torch.randn(64, 100, 64)
    with torch.no_grad():
        biased = scores(layer, x) + layer.logit_scale(100).view(-1, 1, 1) * (
            layer.q_bias.view(4, 1, 16)
            @ (x @ layer.k_weight.T).unflatten(-1, (4, -1)).transpose(1, 2).mT
        )
    measured = biased.var(-1).mean((0, 2)).sqrt()
    torch.testing.assert_close(nn.logit_spread(layer, 100), measured, rtol=0.05, atol=0)


def test_larger_inputs_spread_logits_by_their_variance():
    layer = nn.MultiheadAttention(64, 4)
    spread = nn.logit_spread(layer, 100)
    torch.testing.assert_close(nn.logit_spread(layer, 100, inputs=4.0), 4 * spread)


def test_refusals():
    with pytest.raises(ValueError, match="value must be finite and > 0, got 0"):
        nn.score_variance(0.0)
    with pytest.raises(NotImplementedError, match="dot score without qk_norm"):
        nn.MultiheadAttention(32, 4, qk_norm="rms", init=nn.score_variance(1.0))
    with pytest.raises(ValueError, match="scale of the layer must be not 0 at length 1"):
        nn.MultiheadAttention(32, 4, scale=at.LogLength(), init=nn.score_variance(1.0, length=1))
    with pytest.raises(NotImplementedError, match="no closed form for the spread of AdditiveScore"):
        nn.expected_entropy(nn.AdditiveAttention(32, 4), 10)
    with pytest.raises(ValueError, match="n must be >= 1, got 0"):
        nn.expected_entropy(nn.MultiheadAttention(32, 4), 0)


def test_expected_entropy_of_the_module_of_the_documents():
    layer = at.nn.EntropyInvariantAttention(64, 4, kappa=8.0)
    same = at.nn.MultiheadAttention(64, 4, scale=at.LogLength(8.0))
    parts = (layer.W_Q, layer.W_K, layer.W_V)
    with torch.no_grad():
        same.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        same.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    got, want = (at.nn.expected_entropy(x, 512) for x in (layer, same))
    torch.testing.assert_close(got, want)


def test_expected_entropy_refuses_what_has_none():
    with pytest.raises(TypeError, match="layer must be a MultiheadAttention .*, got Linear"):
        at.nn.expected_entropy(torch.nn.Linear(2, 2), 8)
    with pytest.raises(NotImplementedError, match="entropy of Kernelised"):
        at.nn.expected_entropy(at.nn.LinearAttention(16, 2), 8)
