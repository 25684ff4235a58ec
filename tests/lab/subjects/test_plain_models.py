import pytest
import torch

import attentropy as at
from attentropy.lab.subjects.plain_models import KINDS, PlainKind, PlainModel


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_reads_as_its_kind_says(kind):
    torch.manual_seed(0)
    model = PlainModel(KINDS[kind])
    tokens = torch.randint(0, 256, (2, 11))
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 256
    first, second = model(tokens), model(changed)
    assert first.shape == (2, 11, 256)
    same = torch.equal(first[:, :-1], second[:, :-1])
    assert same == KINDS[kind].causal


@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_is_watched(kind):
    model = PlainModel(KINDS[kind])
    with at.watch(model) as w:
        model(torch.randint(0, 256, (2, 11)))
    assert len(w.heads()) == KINDS[kind].layers * KINDS[kind].heads
    assert {row.causal for row in w.heads()} == {KINDS[kind].causal}


def test_the_decoder_has_half_a_million_parameters():
    count = sum(p.numel() for p in PlainModel(KINDS["decoder"]).parameters())
    assert count == 495_488


def test_heads_share_keys():
    model = PlainModel(PlainKind(width=32, heads=4, shared=2, rotary=True))
    assert model.blocks[0].inward.weight.shape == (32 + 16 + 16, 32)
    assert model.places is None


def test_positions_are_seen():
    torch.manual_seed(0)
    tokens = torch.full((1, 6), 65)
    for kind in (PlainKind(width=32), PlainKind(width=32, after=True)):
        out = PlainModel(kind)(tokens)
        assert not torch.allclose(out[:, 1], out[:, 5])
