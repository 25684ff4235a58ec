"""The probes find a disease that was put in, and say where they do not exist."""

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import attentropy as at
from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.lab.embedded import load_embedded
from attentropy.models.losses import probes
from attentropy.models.losses.tokens import token_losses
from models.losses.diseases import TRAINED, Orderly, Sick, text


def test_distance_alone_hurts_a_model_that_knows_no_distance():
    found = probes.distance_probe(Sick(distance=0.5), text(6, 96), trained=TRAINED)
    assert [one.change.difference for one in found] == pytest.approx([0.5] * 3, abs=1e-5)
    assert all(one.change.hurts for one in found)
    assert [one.gap for one in found] == [72 - 16, 88 - 16, 128 - 16]


def test_more_keys_alone_do_not_move_the_distance_probe():
    found = probes.distance_probe(Sick(dilution=0.5), text(6, 96), trained=TRAINED)
    assert [one.change.difference for one in found] == pytest.approx([0] * 3, abs=1e-6)


def test_gaps_begin_between_the_halves():
    model = Sick()
    (found,) = probes.distance_probe(model, text(1, 40), trained=TRAINED, gaps=[100], window=8)
    home, far = model.calls
    assert home[0].tolist() == [0, 1, 2, 3, 60, 61, 62, 63]
    assert far[0].tolist() == [0, 1, 2, 3, 104, 105, 106, 107]
    assert found.farthest == 107
    assert found.change.texts == 5


def test_the_number_probe_keeps_positions_in_the_trained_range():
    model = Sick(distance=0.5, dilution=0.25)
    found = probes.number_probe(model, text(2, 100), trained=TRAINED, last=20)
    assert found.shape == (2, 20)
    assert float(found.mean()) == pytest.approx(1.25, abs=0.02)
    assert int(model.calls[0].max()) == TRAINED - 1


def test_thinned_windows_show_no_more_keys_than_training():
    model = load_embedded()
    ids = torch.randint(256, (1, 400), generator=torch.Generator().manual_seed(0))
    found = probes.thinned_probe(model, ids, trained=128, last=64)
    mask = at.causal & (at.lookback(64) | at.prefix(1) | at.strided(6))
    assert 116 <= max(line.count("#") for line in mask.draw(400).splitlines()) <= 128
    handle = at.steer(model, mask=mask)
    wanted = token_losses(model, ids)[:, -64:]
    handle.undo()
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    ("model", "why"),
    [(Orderly(), "takes no position_ids"),
     (GPT2LMHeadModel(GPT2Config(n_positions=32, n_embd=8, n_layer=1, n_head=2, vocab_size=9)),
      "its positions are a table that ends with the trained length")],
)  # fmt: skip
def test_a_probe_that_does_not_exist_says_why(model, why):
    with pytest.raises(UnsupportedError, match=why):
        probes.distance_probe(model, text(1, 64), trained=32)


def test_a_table_can_be_clipped_and_an_orderly_model_cannot():
    model = GPT2LMHeadModel(GPT2Config(n_positions=32, n_embd=8, n_layer=1, n_head=2, vocab_size=9))
    assert probes.number_probe(model.eval(), text(2, 50), trained=32, last=10).shape == (2, 10)
    with pytest.raises(UnsupportedError, match="Orderly has no clipped positions"):
        probes.number_probe(Orderly(), text(1, 64), trained=32, last=8)


def test_bad_windows_are_named():
    with pytest.raises(ArgumentError, match="window must be between 4 and the trained length 64"):
        probes.distance_probe(Sick(), text(1, 200), trained=TRAINED, window=100)
    with pytest.raises(ArgumentError, match="tokens must be at least 32 in a row, got 20"):
        probes.distance_probe(Sick(), text(1, 20), trained=TRAINED)


def test_learned_positions_limit_a_model():
    model = nn.Module()
    model.position = nn.Embedding(40, 4, padding_idx=1)
    assert probes.position_limit(model) == 38
    assert probes.position_limit(Orderly()) is None
