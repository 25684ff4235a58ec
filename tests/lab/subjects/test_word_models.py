import copy
import math

import pytest
import torch

from attentropy.core.scales import LogLengthFrom
from attentropy.lab.subjects.word_models import Lamb, WordModel


def small():
    torch.manual_seed(0)
    return WordModel(40, width=16, layers=3, keys=8)


def plain(model, tokens):
    """The published forward pass, written out."""
    x = torch.nn.functional.embedding(tokens, model.embedding.weight)
    x = x / x.pow(2).mean(-1, keepdim=True).sqrt()
    for unit in model.units:
        u, v, z = torch.nn.functional.silu(x @ unit.in_proj.weight.T).split((32, 32, 8), -1)
        q, k = (unit.positions.rotate(z * g) for g in unit.gain)
        a = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(8), -1)
        x = x + (u * (a @ v)) @ unit.out_proj.weight.T
        x = x / x.pow(2).mean(-1, keepdim=True).sqrt()
    return x @ model.embedding.weight.T


def test_the_forward_pass_is_the_published_one():
    model, tokens = (
        small(),
        torch.randint(0, 40, (2, 9), generator=torch.Generator().manual_seed(1)),
    )
    features, stats = model.read(tokens)
    assert torch.allclose(model.name(features), plain(model, tokens), atol=1e-5)
    assert len(stats) == 3


def test_nothing_but_gains_and_matrices_learns_and_weights_begin_small():
    model = small()
    learned = {name for name, p in model.named_parameters() if p.requires_grad}
    assert not any("offset" in name or "bias" in name for name in learned)
    wide = WordModel(40, width=128, layers=8, keys=16)
    deviation = wide.units[0].in_proj.weight.std().item()
    assert deviation == pytest.approx(8 ** (-1 / 3) / 128**0.5, rel=0.03)


def test_a_scale_is_given_to_every_unit():
    model, tokens = small(), torch.arange(32)[None]
    model.set_scale(LogLengthFrom(8))
    sharp = model.read(tokens)[1][0].entropy
    model.set_scale(None)
    assert (sharp < model.read(tokens)[1][0].entropy).all()


def test_lamb_is_the_formula_by_hand():
    weight, vector = torch.randn(4, 3), torch.randn(5)
    ours = [torch.nn.Parameter(t.clone()) for t in (weight, vector)]
    optimiser = Lamb(ours, 0.1, decay=0.01)
    mean, square = torch.zeros(4, 3), torch.zeros(4, 3)
    for step in range(3):
        grads = [torch.randn(4, 3), torch.randn(5)]
        for p, g in zip(ours, grads, strict=True):
            p.grad = g
        before = copy.deepcopy(ours[1].data)
        optimiser.step()
        mean, square = 0.9 * mean + 0.1 * grads[0], 0.999 * square + 0.001 * grads[0] ** 2
        update = mean / (square.sqrt() + 1e-6) + 0.01 * weight
        weight = weight - 0.1 * weight.norm() / update.norm() * update
        assert torch.allclose(ours[0].data, weight, atol=1e-6), step
        assert not torch.equal(before, ours[1].data)
