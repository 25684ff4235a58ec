"""MultiheadAttention against torch's, against attend(), and step by step with a cache."""

import pickle

import pytest
import torch
from torch import nn

import attentropy as at

MHA = at.nn.MultiheadAttention


def pair(seed=0, **options):
    """torch's layer and ours with the same weights, biases not zero."""
    torch.manual_seed(seed)
    theirs = nn.MultiheadAttention(32, 4, batch_first=True, **options)
    for bias in (theirs.in_proj_bias, theirs.out_proj.bias):
        if bias is not None:
            nn.init.normal_(bias, std=0.1)
    ours = MHA(32, 4, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 10, "vdim": 12}, {"kdim": 7}])
@pytest.mark.parametrize("masked", ["none", "bool", "float", "per head", "padding", "both"])
def test_equals_torch(options, masked):
    theirs, ours = pair(**options)
    q = torch.randn(3, 6, 32)
    k, v = torch.randn(3, 9, options.get("kdim", 32)), torch.randn(3, 9, options.get("vdim", 32))
    hidden, pad = torch.rand(6, 9) > 0.7, torch.rand(3, 9) > 0.7
    hidden[:, 0] = pad[:, 0] = False
    given = {
        "none": {},
        "bool": {"attn_mask": hidden},
        "float": {"attn_mask": torch.randn(6, 9)},
        "per head": {"attn_mask": torch.randn(12, 6, 9)},
        "padding": {"key_padding_mask": pad},
        "both": {
            "attn_mask": torch.zeros(6, 9).masked_fill(hidden, -torch.inf),
            "key_padding_mask": torch.zeros(3, 9).masked_fill(pad, -torch.inf),
        },
    }[masked]
    want, _ = theirs(q, k, v, need_weights=False, **given)
    out, stats = ours(q, k, v, **given)
    torch.testing.assert_close(out, want, rtol=0, atol=1e-6)
    assert stats.entropy.shape == (3, 4, 6)


def test_self_attention_equals_torch_with_gradients():
    theirs, ours = pair()
    x = torch.randn(2, 7, 32)
    want = theirs(x, x, x, need_weights=False)[0]
    got = ours(x).out
    torch.testing.assert_close(got, want, rtol=0, atol=1e-6)
    want.square().sum().backward()
    got.square().sum().backward()
    for (name, p), (other, r) in zip(
        sorted(theirs.named_parameters()), sorted(ours.named_parameters()), strict=True
    ):
        assert name == other
        torch.testing.assert_close(p.grad, r.grad, rtol=1e-4, atol=1e-5)


def test_is_causal_means_causal():
    theirs, ours = pair()
    x = torch.randn(2, 7, 32)
    square = nn.Transformer.generate_square_subsequent_mask(7)
    want = theirs(x, x, x, attn_mask=square, is_causal=True, need_weights=False)[0]
    for given in ({"attn_mask": square, "is_causal": True}, {"is_causal": True}):
        torch.testing.assert_close(ours(x, **given).out, want, rtol=0, atol=1e-6)
    torch.testing.assert_close(ours(x, mask=at.causal).out, want, rtol=0, atol=1e-6)


def test_from_torch():
    theirs, _ = pair()
    theirs.eval()
    ours = MHA.from_torch(theirs, scale=at.InverseSqrt())
    assert not ours.training
    x = torch.randn(2, 7, 32)
    torch.testing.assert_close(ours(x).out, theirs(x, x, x)[0], rtol=0, atol=1e-6)
    with pytest.raises(NotImplementedError, match="batch_first=True only"):
        MHA.from_torch(nn.MultiheadAttention(32, 4))
    with pytest.raises(NotImplementedError, match="add_bias_kv"):
        MHA.from_torch(nn.MultiheadAttention(32, 4, add_bias_kv=True, batch_first=True))


@pytest.mark.parametrize("training", [True, False])
def test_swapped_into_encoder_and_decoder_of_torch(training):
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True), 2, enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoderLayer(32, 4, 64, 0.0, batch_first=True)
    x, pad = torch.randn(2, 7, 32), torch.arange(7) >= torch.tensor([[7], [4]])
    encoder.train(training)
    decoder.train(training)
    with torch.no_grad():
        memory = encoder(x, src_key_padding_mask=pad)
        want = decoder(x, memory, memory_key_padding_mask=pad)
        for layer in encoder.layers:
            layer.self_attn = MHA.from_torch(layer.self_attn)
        decoder.self_attn = MHA.from_torch(decoder.self_attn)
        decoder.multihead_attn = MHA.from_torch(decoder.multihead_attn)
        memory = encoder(x, src_key_padding_mask=pad)
        got = decoder(x, memory, memory_key_padding_mask=pad)
    seen = ~pad
    torch.testing.assert_close(got[seen], want[seen], rtol=0, atol=1e-5)


def test_the_fast_path_of_torch_does_not_bypass_our_scale():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    x = torch.randn(1, 7, 32)
    with torch.no_grad():
        before = layer(x)
        layer.self_attn = MHA.from_torch(layer.self_attn, scale=5.0)
        assert (layer(x) - before).abs().max() > 1e-3


PARTS = {
    "plain": lambda: {},
    "gqa": lambda: {"num_kv_heads": 2},
    "widths": lambda: {"head_dim": 6, "value_dim": 10, "num_kv_heads": 1},
    "rotary": lambda: {"positions": at.nn.RotaryPositions(), "qk_norm": "rms"},
    "yarn": lambda: {"positions": at.nn.RotaryPositions(scaling=at.nn.YaRN(4.0, 8))},
    "sinusoidal": lambda: {"positions": at.nn.SinusoidalPositions(0.5)},
    "relative": lambda: {"positions": at.nn.RelativeBias(4, 3)},
    "alibi": lambda: {"positions": at.ALiBi(), "qk_norm": "layer"},
    "log length": lambda: {"scale": at.LogLength(3.0)},
    "ssmax": lambda: {"scale": at.nn.SSMax(4)},
    "cosine": lambda: {"score": at.Cosine()},
    "window": lambda: {"mask": at.causal & at.lookback(3)},
    "relu2": lambda: {"weights": at.ReluSquared()},
}


def layer_of(name):
    layer = MHA(32, 4, **{"mask": at.causal, **PARTS[name]()}).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer


def test_it_is_attend_between_two_projections():
    layer = MHA(12, 4, num_kv_heads=2, head_dim=5, value_dim=3, scale=at.LogLength(), kdim=7)
    query, key, value = torch.randn(2, 6, 12), torch.randn(2, 8, 7), torch.randn(2, 8, 12)
    q = (query @ layer.q_weight.T).view(2, 6, 4, 5).transpose(1, 2)
    k = (key @ layer.k_weight.T).view(2, 8, 2, 5).transpose(1, 2)
    v = (value @ layer.v_weight.T).view(2, 8, 2, 3).transpose(1, 2)
    mask = at.causal & at.lookback(4)
    out, stats = at.attend(q, k, v, mask=mask, scale=at.LogLength())
    want = out.transpose(1, 2).flatten(2) @ layer.o_weight.T
    got = layer(query, key, value, mask=mask)
    torch.testing.assert_close(got.out, want)
    torch.testing.assert_close(got.stats.entropy, stats.entropy)


def test_masks_add_up():
    layer = MHA(32, 4, mask=at.causal, positions=at.ALiBi())
    x = torch.randn(2, 6, 32)
    keep, bias = torch.rand(6, 6) > 0.3, torch.randn(6, 6)
    pad = torch.arange(6) >= torch.tensor([[6], [4]])
    got = layer(x, mask=keep, attn_mask=bias, key_padding_mask=pad)
    tril = torch.ones(6, 6).tril().bool()
    shown = (keep & tril)[None, None] & ~pad[:, None, None]
    assert torch.equal(got.stats.visible, shown.sum(-1).expand(2, 4, 6))
    joint = bias.expand(2, 1, 6, 6).masked_fill(~shown, -torch.inf)
    plain = MHA(32, 4, positions=layer.positions)
    plain.load_state_dict(layer.state_dict())
    torch.testing.assert_close(got.out, plain(x, mask=joint).out)


def test_dropout_acts_in_training_only():
    layer = MHA(32, 4, dropout=0.5)
    x = torch.randn(2, 6, 32)
    assert not torch.equal(layer(x).out, layer(x).out)
    layer.eval()
    assert torch.equal(layer(x).out, layer(x).out)


def test_gradcheck_through_output_and_statistics():
    layer = MHA(6, 2, num_kv_heads=1, scale=at.nn.SSMax(2, reference=3), qk_norm="rms").double()
    x = torch.randn(1, 4, 6, dtype=torch.double, requires_grad=True)

    def run(x, weight, slope):
        named = {"in_proj_weight": weight, "scale.slope": slope}
        out, stats = torch.func.functional_call(layer, named, (x,), {"mask": at.causal})
        return out, stats.entropy, stats.lse, stats.collision

    weight = layer.in_proj_weight.detach().requires_grad_()
    slope = layer.scale.slope.detach().requires_grad_()
    assert torch.autograd.gradcheck(run, (x, weight, slope), atol=1e-4)


STATE = {
    "plain": "in_proj_bias in_proj_weight out_proj.bias out_proj.weight",
    "rotary": "in_proj_bias in_proj_weight out_proj.bias out_proj.weight "
    "qk_norm.k.weight qk_norm.q.weight",
    "relative": "in_proj_bias in_proj_weight out_proj.bias out_proj.weight positions.table",
    "ssmax": "in_proj_bias in_proj_weight out_proj.bias out_proj.weight scale.offset scale.slope",
}


@pytest.mark.parametrize("name", STATE)
def test_state_dict_keys_are_stable(name):
    assert sorted(layer_of(name).state_dict()) == STATE[name].split()


def test_state_dict_keys_with_separate_projections():
    keys = "in_proj_bias k_proj_weight out_proj.bias out_proj.weight q_proj_weight v_proj_weight"
    assert sorted(MHA(32, 4, kdim=5).state_dict()) == keys.split()
    assert sorted(MHA(32, 4, bias=False).state_dict()) == ["in_proj_weight", "out_proj.weight"]


def test_a_state_dict_of_the_wrong_shape_names_the_key():
    state = MHA(32, 4).state_dict()
    with pytest.raises(RuntimeError, match=r"size mismatch for in_proj_weight.*\[96, 32\].*\[64"):
        MHA(32, 4, num_kv_heads=2).load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"Missing key.*q_proj_weight"):
        MHA(32, 4, kdim=3).load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 5}, "num_heads must be a divisor of embed_dim = 32, got 5"),
        ({"num_heads": 0}, "num_heads must be >= 1, got 0"),
        ({"num_heads": 4.0}, "num_heads must be an integer, got 4.0"),
        ({"num_kv_heads": 3}, "num_kv_heads must be a divisor of num_heads = 4, got 3"),
        ({"dropout": 1.0}, "dropout must be a number in [0, 1), got 1.0"),
        ({"batch_first": False}, "batch_first must be True"),
        ({"qk_norm": "batch"}, "QKNorm: kind must be one of ['layer', 'rms'], got 'batch'"),
        ({"qk_norm": 3}, "qk_norm must be 'rms', 'layer' or a QKNorm, got 3"),
        ({"positions": 7}, "positions must be RotaryPositions, SinusoidalPositions"),
        ({"head_dim": 0}, "head_dim must be >= 1, got 0"),
        ({"scale": at.nn.AdaptiveScale(1.0, 3)}, "number of heads must be 3, got 4"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises((ValueError, TypeError)) as caught:
        MHA(32, **{"num_heads": 4, **arguments})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query": torch.zeros(2, 5, 31)}, "query must be of shape [B,N,32], got [2, 5, 31]"),
        ({"query": torch.zeros(5, 32)}, "query must be of shape [B,N,32], got [5, 32]"),
        ({"key": torch.zeros(2, 5, 3)}, "key must be of shape [B,N,32], got [2, 5, 3]"),
        ({"attn_mask": torch.ones(5).bool()}, "attn_mask must be of shape [Q,K] or [B*H,Q,K]"),
        ({"attn_mask": torch.ones(7, 5, 5)}, "attn_mask must be [B*H,Q,K] with H = 4"),
        ({"attn_mask": torch.ones(5, 5).int()}, "attn_mask.dtype must be bool (True hides)"),
        ({"key_padding_mask": torch.ones(5)}, "key_padding_mask must be of shape [B,K], got [5]"),
    ],
)
def test_bad_inputs(arguments, message):
    layer = MHA(32, 4)
    with pytest.raises((ValueError, TypeError)) as caught:
        layer(**{"query": torch.zeros(2, 5, 32), **arguments})
    assert message in str(caught.value)


def test_repr_names_the_parts():
    text = repr(MHA(32, 4, num_kv_heads=2, scale=at.LogLength(), score=at.Cosine()))
    assert "32, heads=4/2, head_dim=8, score=Cosine(eps=1e-06), scale=LogLength(" in text


def test_nan_reaches_the_output():
    x = torch.randn(1, 4, 32)
    x[0, 2, 0] = torch.nan
    assert MHA(32, 4)(x).out.isnan().any()


def test_a_layer_with_a_mask_is_pickled():
    layer = MHA(16, 2, mask=at.causal & at.lookback(3)).eval()
    x = torch.randn(1, 5, 16)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x).out, layer(x).out)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"score": "dot"}, "score must be Dot"),
        ({"scale": "log"}, "scale must be a scale rule, a number or a tensor, got 'log'"),
        ({"scale": at.LogLength}, "scale must be a scale rule, a number or a tensor, got <class"),
        (
            {"weights": "softmax"},
            "weights must be a value of attentropy.core.weights, got 'softmax'",
        ),
        ({"mask": "causal"}, "mask must be a Mask, a tensor or a function"),
    ],
)
def test_parts_are_checked_when_the_layer_is_made(part, message):
    with pytest.raises(TypeError, match=message):
        MHA(16, 2, **part)
    if "score" not in part:
        with pytest.raises(TypeError, match=message):
            at.nn.GatedAttentionUnit(16, **part)


def test_weights_are_those_of_torch():
    theirs = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    ours, x = MHA.from_torch(theirs), torch.randn(2, 5, 32)
    want, want_weights = theirs(x, x, x, need_weights=True, average_attn_weights=False)
    out, weights = ours(x, x, x, need_weights=True)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(weights + 0, want_weights)
    assert weights.shape == (2, 4, 5, 5)
    assert type(weights + 0) is torch.Tensor
    torch.testing.assert_close(weights.stats.entropy, ours(x).stats.entropy)
    torch.testing.assert_close(weights.entropy, ours(x).stats.entropy)


def test_variants_give_weights():
    x = torch.randn(2, 5, 32)
    for kind in (at.nn.AdditiveAttention, at.nn.CosineAttention, at.nn.LinearAttention):
        layer = kind(32, 4, mask=at.causal)
        weights = layer(x, need_weights=True).weights
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 5))
        assert (weights.triu(1) == 0).all()
