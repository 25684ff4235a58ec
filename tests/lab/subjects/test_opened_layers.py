import pytest
import torch

from attentropy.core.masks import causal
from attentropy.core.scales import LogLengthFrom
from attentropy.core.scores import ALiBi
from attentropy.core.weights import Softmax
from attentropy.lab.subjects.opened_layers import CalledOnTorch, ClippedRotary, parts
from attentropy.nn.layers.gau import GatedAttentionUnit
from attentropy.nn.layers.multihead import MultiheadAttention
from attentropy.nn.positions.rotary import RotaryPositions

POSITIONS = {"none": lambda: None, "RoPE": RotaryPositions, "ALiBi": ALiBi}


def multihead(positions, **more):
    return MultiheadAttention(16, 2, positions=positions, **more)


def gated(positions, **more):
    return GatedAttentionUnit(16, key_dim=8, weights=Softmax(), positions=positions, **more)


@pytest.mark.parametrize("mask", [None, causal], ids=["full", "causal"])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("norm", [None, "rms"])
def test_the_call_on_torch_is_the_same_layer(mask, positions, norm):
    layer = multihead(POSITIONS[positions](), mask=mask, qk_norm=norm)
    x = torch.randn(3, 13, 16)
    torch.testing.assert_close(CalledOnTorch(layer)(x)[0], layer(x).out)


@pytest.mark.parametrize("mask", [None, causal], ids=["full", "causal"])
def test_a_gated_unit_on_torch(mask):
    layer = gated(RotaryPositions(), mask=mask)
    x = torch.randn(3, 13, 16)
    torch.testing.assert_close(CalledOnTorch(layer)(x)[0], layer(x).out)


@pytest.mark.parametrize("make", [multihead, gated])
@pytest.mark.parametrize("mask", [None, causal], ids=["full", "causal"])
def test_clipping_beyond_the_text_changes_nothing(make, mask):
    layer = make(RotaryPositions(), mask=mask, scale=LogLengthFrom(4))
    x = torch.randn(2, 9, 16)
    want, got = layer(x), ClippedRotary(layer, 9)(x)
    torch.testing.assert_close(got.out, want.out)
    torch.testing.assert_close(got.stats.entropy, want.stats.entropy)
    assert torch.equal(got.stats.visible.long(), want.stats.visible.long())


@pytest.mark.parametrize("mask", [None, causal], ids=["full", "causal"])
def test_far_keys_stand_at_the_reach(mask):
    layer, reach, n = multihead(RotaryPositions(), mask=mask), 4, 11
    x = torch.randn(2, n, 16)
    q, k, v, _ = parts(layer, x)
    at = torch.arange(n)
    s = torch.empty(2, 2, n, n)
    for i in range(n):
        for j in range(n):
            away = max(-reach, min(reach, i - j))
            turned = layer.positions.rotate(q[:, :, i : i + 1], first=away)
            s[:, :, i, j] = (turned[:, :, 0] * k[:, :, j]).sum(-1) * 8**-0.5
    if mask is causal:
        s = s.masked_fill(at > at[:, None], -torch.inf)
    p = s.softmax(-1)
    want = layer.out_proj((p @ v).transpose(1, 2).flatten(2))
    out, stats = ClippedRotary(layer, reach)(x)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(stats.entropy, torch.special.entr(p).sum(-1))
    torch.testing.assert_close(stats.collision, p.square().sum(-1))
    torch.testing.assert_close(stats.max_logit, s.amax(-1))
    assert torch.equal(stats.argmax, s.argmax(-1))
    assert torch.equal(stats.visible, (~s.isneginf()).sum(-1))
