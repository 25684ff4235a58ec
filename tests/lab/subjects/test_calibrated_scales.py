import pytest
import torch

from attentropy.core.masks import causal
from attentropy.lab.subjects.calibrated_scales import calibrated, on_torch
from attentropy.lab.subjects.small_model import ByteModel
from attentropy.nn.layers.multihead import MultiheadAttention


def model(mask=None):
    made = ByteModel(16, 2, lambda: MultiheadAttention(16, 2, mask=mask)).eval().double()
    for layer in made.stack.attentions:
        layer.in_proj_weight.data[:32] *= 2  # an entropy that a factor can hold
    return made


@pytest.mark.parametrize("mask", [None, causal], ids=["full", "causal"])
def test_a_plan_holds_the_entropy(mask):
    torch.manual_seed(0)
    made, tokens = model(mask), torch.randint(256, (16, 128))
    with torch.no_grad():
        torch.testing.assert_close(on_torch(made)(tokens)[0], made(tokens)[0])
        rules = calibrated(made, tokens, [32, 128])
        assert len(rules) == 2
        home = _entropies(made, tokens[:, :32])
        plain = _entropies(made, tokens)
        for layer, rule in zip(made.stack.attentions, rules, strict=True):
            layer.scale = rule
        held = _entropies(made, tokens)
    assert (plain - home > 0.5).all()
    assert ((held - home).abs() < 0.2 * (plain - home)).all()


def _entropies(made, tokens):
    return torch.stack(
        [stats.entropy[..., -tokens.shape[1] // 8 :].mean() for stats in made(tokens)[1]]
    )
