"""Calls of F.scaled_dot_product_attention: by torch's own modules, and in odd shapes."""

import math
from importlib import import_module
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attentropy as at
from attentropy.models.intercept.sdpa import TORCHS_OWN
from tests.models.test_watch import values


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("sizes", [(5, 9), (9, 5)])
def test_is_causal_of_sdpa_starts_at_the_first_key(sizes):
    class Odd(nn.Module):
        def forward(self, q, k):
            return F.scaled_dot_product_attention(q, k, k, is_causal=True, scale=0.7)

    q, k = torch.randn(2, 3, sizes[0], 8), torch.randn(2, 3, sizes[1], 8)
    odd = nn.Sequential(Odd())[0]
    with at.watch(odd):
        watched = odd(q, k)
    torch.testing.assert_close(watched, odd(q, k))


@pytest.mark.parametrize("lead", [(), (2,), (2, 3, 4)])
def test_sdpa_of_other_dimensions(lead):
    class Bare(nn.Module):
        def forward(self, q, mask):
            return F.scaled_dot_product_attention(q, q, q, mask)

    q = torch.randn(*lead, 6, 8)
    mask = torch.ones(*lead, 6, 6).tril().bool()
    bare = Bare()
    with at.watch(bare) as w:
        watched = bare(q, mask)
    torch.testing.assert_close(watched, bare(q, mask))
    assert w.heads()[0].rows == 5 * math.prod(lead[:-1] if len(lead) > 1 else lead)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_multihead_attention_with_padding(need_weights, training):
    mha = nn.MultiheadAttention(32, 4, batch_first=True)
    mha.train(training)
    x = torch.randn(2, 9, 32)
    padded = torch.zeros(2, 9, dtype=torch.bool)
    padded[1, 6:] = True
    with torch.no_grad():
        plain, weights = mha(x, x, x, key_padding_mask=padded, average_attn_weights=False)
        with at.watch(mha) as w:
            watched, _ = mha(x, x, x, key_padding_mask=padded, need_weights=need_weights)
    torch.testing.assert_close(watched, plain, atol=1e-6, rtol=1e-5)
    entropy = torch.special.entr(weights).sum(-1)
    want = torch.cat([entropy[0], entropy[1, :, :6]], -1).mean(-1).double()
    torch.testing.assert_close(values(w, "entropy"), want, atol=1e-6, rtol=0)
    assert {row.rows for row in w.heads()} == {15}
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("norm", [True, False])
@torch.no_grad()
def test_padding_of_an_encoder_with_nested_tensors_comes_out_as_without_us(norm):
    def make():
        layer = nn.TransformerEncoderLayer(32, 4, 32, batch_first=True)
        return nn.TransformerEncoder(layer, 2, nn.LayerNorm(32) if norm else None).eval()

    model, other, x = make(), make(), torch.randn(2, 9, 32)
    padded = torch.zeros(2, 9, dtype=torch.bool)
    padded[1, 6:] = True
    plain, beside = (m(x, src_key_padding_mask=padded) for m in (model, other))
    assert bool((plain[1, 6:] == plain[1, 6]).all())  # the fast path was taken
    with at.watch(model) as w:
        watched = [model(x, src_key_padding_mask=padded) for _ in range(2)]
        assert torch.equal(other(x, src_key_padding_mask=padded)[1, 6:], beside[1, 6:])
    for one in watched:
        torch.testing.assert_close(one, plain, atol=1e-5, rtol=1e-5)
    assert {row.rows for row in w.heads()} == {30}
    handle = at.steer(model, temperature=1.0)
    torch.testing.assert_close(model(x, src_key_padding_mask=padded), plain, atol=1e-5, rtol=1e-5)
    handle.undo()
    assert torch.equal(model(x, src_key_padding_mask=padded), plain)


def test_transformer_encoder_and_decoder_tell_self_from_cross():
    model = nn.Transformer(32, 4, 1, 1, 32, batch_first=True).eval()
    source, target = torch.randn(2, 7, 32), torch.randn(2, 7, 32)
    causal = nn.Transformer.generate_square_subsequent_mask(7)
    with torch.no_grad():
        plain = model(source, target, tgt_mask=causal)
        with at.watch(model) as w:
            watched = model(source, target, tgt_mask=causal)
    torch.testing.assert_close(watched, plain, atol=1e-5, rtol=1e-5)
    assert {(row.layer, row.kind, row.causal) for row in w.heads()} == {
        ("encoder.layers.0.self_attn", "self", False),
        ("decoder.layers.0.self_attn", "self", True),
        ("decoder.layers.0.multihead_attn", "cross", False),
    }
    cross = next(row for row in w.heads() if row.kind == "cross")
    assert math.isnan(cross.distance)
    assert math.isnan(cross.previous_share)


def test_padding_of_the_fast_path_encoder():
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(32, 4, 32, batch_first=True), 2, enable_nested_tensor=False
    ).eval()
    x = torch.randn(2, 6, 32)
    padded = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=padded)
        with at.watch(model) as w:
            watched = model(x, src_key_padding_mask=padded)
    torch.testing.assert_close(watched[~padded], plain[~padded], atol=1e-5, rtol=1e-5)
    assert {row.rows for row in w.heads()} == {10}


class OfAMesh(torch.Tensor):
    """Stands for a DTensor, whose attention on CPUs torch does not have."""

    device_mesh = "a mesh"


def spread_by_torch(calls):
    """torch's own patch of context_parallel around the function as it is now."""
    torchs = import_module(TORCHS_OWN[0])

    def into(module, args, kwargs, mesh):
        calls.append("spread")
        q, k, v = (x.as_subclass(OfAMesh) for x in args[:3])
        return (q, k, v, *args[3:]), kwargs

    def back(module, inputs, output, mesh):
        return output.as_subclass(torch.Tensor)

    torchs._distribute_function(F.scaled_dot_product_attention, F, "a mesh", into, back)
    return lambda: torchs._restore_function(F.scaled_dot_product_attention, F)


@pytest.mark.parametrize("first", ["watch", "torch"])
def test_context_parallel_of_torch_is_named_and_left_alone(first):
    class Attending(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x)

    if not find_spec(TORCHS_OWN[0].rpartition(".")[0]):
        pytest.skip("context_parallel of torch before 2.10 calls functions of another shape")
    model, x, calls = Attending(), torch.randn(1, 2, 5, 4), []
    with at.watch(model) as w:  # the calls of the module are known
        for _ in range(3):
            want = model(x)
    plain = F.scaled_dot_product_attention
    w = at.watch(model)
    steps = [spread_by_torch, lambda _: w.start() and w.stop]
    ends = [step(calls) for step in (steps if first == "torch" else steps[::-1])]
    got = model(x)
    for end in ends[::-1]:
        end()
    assert F.scaled_dot_product_attention is plain
    assert calls == ["spread"]
    torch.testing.assert_close(got, want)
    assert w.places() == []
    assert "context_parallel of torch" in w.recorder.missed[""]


@pytest.mark.parametrize("is_causal", [False, True])
@torch.no_grad()
def test_where_keys_of_torchs_own_layer_come_from(is_causal):
    layer, x, y = nn.MultiheadAttention(32, 4), torch.randn(2, 5, 32), torch.randn(2, 7, 32)
    pad = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    hide = ~torch.ones(5, 7).tril().bool()
    causal = {"need_weights": False, "is_causal": is_causal}
    with at.watch(layer) as own:  # two views of one input
        layer(*(x.transpose(0, 1) for _ in range(3)), key_padding_mask=pad)
    with at.watch(layer) as other:
        keys = y.transpose(0, 1)
        layer(x.transpose(0, 1), keys, keys, attn_mask=hide if is_causal else None, **causal)
    assert {(row.kind, row.rows) for row in own.heads()} == {("self", 8)}
    assert {row.kind for row in other.heads()} == {"cross"}
