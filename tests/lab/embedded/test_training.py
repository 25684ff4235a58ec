from dataclasses import replace

import pytest
import torch

from attentropy.core.errors import ArgumentError
from attentropy.lab.embedded.model import ModelShape
from attentropy.lab.embedded.training import (
    Recipe,
    Trainer,
    first_key_share,
    initial_model,
    rate_factor,
    training_batch,
)

TEXT = b"In the beginning was the Word, and the Word was with God. " * 400
SMALL = Recipe(
    steps=20,
    batch=8,
    warmup=5,
    shape=ModelShape(layers=2, heads=2, width=32, rotary_heads=1, trained_length=32),
    periods=(4, 16),
)


def run(trainer, until):
    while trainer.step < until:
        trainer.advance()
    return trainer


def test_twenty_steps_learn_and_resume_to_the_same_numbers(tmp_path):
    whole = run(Trainer(TEXT, SMALL), 20)
    run(Trainer(TEXT, SMALL), 7).save(tmp_path / "c.pt")
    resumed = Trainer(TEXT, SMALL)
    resumed.resume(tmp_path / "c.pt")
    assert resumed.step == 7
    run(resumed, 20)
    assert resumed.losses == whole.losses
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], weight), name
    assert whole.losses[-1] < whole.losses[0] - 1.0
    assert [p.name for p in tmp_path.iterdir()] == ["c.pt"]


def test_resume_refuses_another_recipe_or_text(tmp_path):
    run(Trainer(TEXT, SMALL), 1).save(tmp_path / "c.pt")
    for other in (Trainer(TEXT, Recipe(steps=21)), Trainer(TEXT + b"!", SMALL)):
        with pytest.raises(ArgumentError, match="checkpoint must be of the same recipe and text"):
            other.resume(tmp_path / "c.pt")


def test_batches_depend_on_seed_and_step_only():
    text = torch.arange(5000, dtype=torch.int32).remainder(256).to(torch.uint8)
    first = training_batch(text, 3, SMALL)
    assert torch.equal(first, training_batch(text, 3, SMALL))
    assert not torch.equal(first, training_batch(text, 4, SMALL))
    assert first.shape == (8, 33)
    step = first.diff(dim=1).remainder(256)
    assert (step[2:] == 1).all(), "plain rows are pieces of the text"
    assert ((step[:2] != 1).sum(1) >= 1).all(), "repeated rows jump back"


def test_rate_rises_stays_and_falls():
    recipe = Recipe(steps=1000, warmup=10, flat=0.4)
    factors = [rate_factor(step, recipe) for step in range(1000)]
    assert factors[0] == pytest.approx(0.1)
    assert set(factors[10:400]) == {1.0}
    assert factors[700] == pytest.approx(0.5)
    assert factors[-1] == 0.02


def test_initial_model_predicts_uniformly():
    logits = initial_model(SMALL)(torch.tensor([list(b"abc")]))
    assert torch.equal(logits, torch.zeros_like(logits))


def test_steps_are_checked():
    with pytest.raises(ArgumentError, match="steps must be at least 1, got 0"):
        Recipe(steps=0)


def test_first_key_share_against_float64():
    torch.manual_seed(2)
    q, k = torch.randn(2, 2, 3, 7, 8).unbind(0)
    share = first_key_share(q, k)
    for row in range(7):
        s = (
            q[:, :, row].double().unsqueeze(2)
            @ k[:, :, : row + 1].double().transpose(2, 3)
            / 8**0.5
        )
        torch.testing.assert_close(share[:, :, row].double(), s.softmax(-1)[:, :, 0, 0])


def test_looking_costs_after_the_free_steps():
    free = replace(SMALL, free_steps=1, looking_price=0.5)
    trainer = Trainer(TEXT, free)
    tokens = training_batch(trainer.text, 0, free)[:, :-1]
    logits, price = trainer._predict(tokens)
    assert price == 0
    trainer.losses.append(0.0)
    again, price = trainer._predict(tokens)
    assert torch.equal(again, logits)
    assert 0 < price.item() <= 0.5 * 2, "two layers with one head each that knows no positions"
    price.backward()
    assert trainer.model.layers[0].attention.query.bias.grad[16:].abs().max() > 0
    assert trainer.model.layers[0].attention.query.bias.grad[:16].abs().max() == 0
