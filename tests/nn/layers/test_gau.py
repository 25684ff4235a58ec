"""The gated attention unit against its formula."""

import pytest
import torch
import torch.nn.functional as F

import attentropy as at

nn = at.nn


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
    again, given = layer(x, need_weights=True)
    assert torch.equal(again, out)
    torch.testing.assert_close(given[:, 0], formula(q @ k.mT * 8**-0.5))
    assert torch.equal(given.stats.collision, stats.collision)
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
