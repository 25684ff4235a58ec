"""The other layers against what they are written as."""

import math

import pytest
import torch
import torch.nn.functional as F

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


def test_decay_attention_starts_with_different_memories_and_refuses():
    assert nn.DecayAttention(16, 2).rate.tolist() == pytest.approx([0.5, 0.75])
    with pytest.raises(ValueError, match=r"rate must be a number in \(0, 1\), got 1.0"):
        nn.DecayAttention(16, 2, rate=1.0)
    with pytest.raises(ValueError, match=r"x must be of shape \[B,N,16\]"):
        nn.DecayAttention(16, 2)(torch.zeros(2, 3, 4))


FORMS = {
    "relu2": (at.ReluSquared(), lambda s: s.relu().square() / s.shape[-1]),
    "softmax": (at.Softmax(), lambda s: s.softmax(-1)),
    "l2": (at.L2(at.ReluSquared()), lambda s: F.normalize(s.relu().square(), dim=-1)),
}


@pytest.mark.parametrize("form", FORMS)
def test_gated_attention_unit_is_its_formula(form):
    weights, formula = FORMS[form]
    layer = nn.GatedAttentionUnit(16, expansion=2, key_dim=8, weights=weights)
    torch.nn.init.normal_(layer.gain)
    torch.nn.init.normal_(layer.offset)
    x = torch.randn(2, 7, 16)
    u, v, z = F.silu(layer.in_proj(x)).split((32, 32, 8), -1)
    q, k = z * layer.gain[0] + layer.offset[0], z * layer.gain[1] + layer.offset[1]
    want = layer.out_proj(u * (formula(q @ k.mT * 8**-0.5) @ v))
    out, stats = layer(x)
    torch.testing.assert_close(out, want)
    assert (stats.entropy is None) == (form != "softmax")
    assert stats.sparsity.shape == (2, 1, 7)


def test_gated_attention_unit_with_cache_and_positions():
    layer = nn.GatedAttentionUnit(
        16, key_dim=8, weights=at.Softmax(), mask=at.causal, positions=nn.RotaryPositions()
    )
    x, cache = torch.randn(2, 7, 16), nn.KVCache()
    steps = torch.cat([layer(part, cache=cache).out for part in x.split(3, 1)], 1)
    torch.testing.assert_close(steps, layer(x).out)
    with pytest.raises(TypeError, match="weights must be a value of attentropy.core.weights"):
        nn.GatedAttentionUnit(16, weights="softmax")
    names = "gain offset in_proj.weight in_proj.bias out_proj.weight out_proj.bias"
    assert list(layer.state_dict()) == names.split()


def test_qk_norm_bounds_logits():
    layer = nn.MultiheadAttention(32, 2, qk_norm="rms")
    _, stats = layer(1000 * torch.randn(2, 6, 32))
    assert stats.max_logit.max() <= 16**0.5 + 1e-3
    q, k = torch.randn(2, 3, 4, 16), torch.randn(2, 3, 4, 16)
    norm = nn.QKNorm(16, "layer")
    got = norm(q, k)
    torch.testing.assert_close(got[0], F.layer_norm(q, (16,), eps=1e-6))
    torch.testing.assert_close(got[1], F.layer_norm(k, (16,), eps=1e-6))
    assert norm(q.half(), k.half())[0].dtype == torch.float16
