"""The layer of the documents against its formula."""

import math

import pytest
import torch

import attentropy as at

nn = at.nn


def heads(x, number):
    return x.unflatten(-1, (number, -1)).transpose(1, 2)


def test_entropy_invariant_attention_is_the_formula_of_the_documents():
    layer = nn.EntropyInvariantAttention(16, 2, kappa=1.5)
    Q, K, V = torch.randn(2, 5, 16), torch.randn(2, 9, 16), torch.randn(2, 9, 16)
    q, k, v = heads(layer.W_Q(Q), 2), heads(layer.W_K(K), 2), heads(layer.W_V(V), 2)
    p = (1.5 * math.log(9) / 8 * q @ k.mT).softmax(-1)
    want = layer.W_O((p @ v).transpose(1, 2).flatten(2))
    out, stats = layer(Q, K, V)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(stats.entropy, torch.special.entr(p).sum(-1))


def test_entropy_invariant_attention_counts_visible_keys():
    layer = nn.EntropyInvariantAttention(16, 2)
    x = torch.randn(1, 6, 16)
    mask = torch.ones(6, 6).tril()
    for given in (mask.bool(), mask.long(), at.causal):
        out, stats = layer(x, x, x, given)
        assert stats.visible[0, 0].tolist() == [1, 2, 3, 4, 5, 6]
    short, _ = layer(x[:, :4], x[:, :4], x[:, :4], at.causal)
    torch.testing.assert_close(out[:, :4], short)


def test_entropy_invariant_attention_in_half_precision_and_with_blind_rows():
    layer = nn.EntropyInvariantAttention(16, 2).half()
    x = torch.randn(1, 4, 16).half()
    mask = torch.ones(4, 4).tril(-1).bool()
    out, stats = layer(x, x, x, mask)
    assert out.isfinite().all()
    assert stats.visible[0, 0, 0] == 0
    torch.testing.assert_close(out[0, 0], layer.W_O.bias)


def test_entropy_invariant_attention_takes_the_masks_of_the_documents():
    layer, x = nn.EntropyInvariantAttention(16, 2), torch.randn(1, 4, 16)
    want = layer(x, x, x, at.causal).out
    for mask in (torch.ones(4, 4).tril(), torch.ones(4, 4).tril().long()):
        assert torch.equal(layer(x, x, x, mask).out, want)


def test_entropy_invariant_attention_refuses():
    layer = nn.EntropyInvariantAttention(16, 2)
    x = torch.randn(1, 4, 16)
    for added in (torch.zeros(4, 4), torch.ones(4, 4).tril().log(), torch.randn(4, 4)):
        with pytest.raises(ValueError, match=r"mask must be of 0 \(hidden\) and 1 \(visible\)"):
            layer(x, x, x, added)
    with pytest.raises(ValueError, match=r"K must be of shape \[B,n,16\], got \[1, 4, 8\]"):
        layer(x, x[..., :8], x)
    with pytest.raises(ValueError, match=r"Q must be of shape \[B,n,16\], got \[4, 16\]"):
        layer(x[0], x, x)
    with pytest.raises(ValueError, match="num_heads must be a divisor of d_model = 16, got 3"):
        nn.EntropyInvariantAttention(16, 3)
    with pytest.raises(ValueError, match="kappa must be > 0, got 0"):
        nn.EntropyInvariantAttention(16, 2, kappa=0.0)
    names = [f"W_{x}.{y}" for x in "QKVO" for y in ("weight", "bias")]
    assert list(layer.state_dict()) == names


def test_keys_and_values_are_the_queries_unless_given():
    layer, x, y = at.nn.EntropyInvariantAttention(8, 2), torch.randn(1, 3, 8), torch.randn(1, 4, 8)
    assert torch.equal(layer(x).out, layer(x, x, x).out)
    assert torch.equal(layer(x, y).out, layer(x, y, y).out)


def test_the_example_of_the_documents_runs():
    attn = nn.EntropyInvariantAttention(512, 8, kappa=1.0)
    X = torch.randn(4, 100, 512)
    output, weights = attn(X, X, X)
    assert output.shape == (4, 100, 512)
    assert weights.shape == (4, 8, 100, 100)
    q, k = heads(attn.W_Q(X), 8), heads(attn.W_K(X), 8)
    want = (math.log(100) / 64 * q @ k.mT).softmax(-1)
    torch.testing.assert_close(weights + 0, want)
    out, stats = attn(X, X, X, need_weights=False)
    torch.testing.assert_close(out, output)
    torch.testing.assert_close(stats.entropy, weights.entropy)
