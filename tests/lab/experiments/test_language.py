import pytest
import torch

from attentropy.lab.experiments import language
from attentropy.lab.harness.results import RunResults
from attentropy.lab.subjects.byte_models import byte_model
from attentropy.lab.subjects.small_model import MASK

TINY = language.LanguageConfig(
    width=8, heads=2, layers=1, steps=20, longer=20, tokens=256, times=(1, 4), tested=512, windows=2
)


def test_causal_asks_for_the_next_byte_and_masked_for_the_hidden_ones():
    rng = torch.Generator().manual_seed(0)
    tokens = torch.randint(256, (4, 65), generator=rng)
    seen, asked = language.posed("causal", tokens, 0.15, rng)
    assert torch.equal(seen[:, 1:], asked[:, :-1])
    seen, asked = language.posed("masked", tokens, 0.15, rng)
    hidden = seen == MASK
    assert 0.05 < hidden.float().mean() < 0.3
    assert torch.equal(asked[hidden], tokens[:, :-1][hidden])
    assert (asked[~hidden] == -100).all()


@pytest.mark.parametrize("model", language.LanguageConfig().models)
def test_rules_of_the_test_leave_the_trained_length_alone(model):
    torch.manual_seed(0)
    rows = RunResults(language.measure(TINY, f"{model}, 1/sqrt d", 0))
    n = language.TASKS[model.split()[0]]
    levels = [rows.mean("perplexity", rule=r, n=n) for r in rows.where(n=n).values("rule")]
    assert len(levels) == (7 if "RoPE" in model else 3)
    assert max(levels) == pytest.approx(min(levels), rel=1e-4)
    assert rows.mean("entropy", rule="1/sqrt d, log n at test", n=4 * n) < rows.mean(
        "entropy", rule="1/sqrt d", n=4 * n
    )


@pytest.mark.parametrize("rule", ["log n", "mixed 1", "KeyNorm", "QK-norm"])
def test_every_rule_trains(rule):
    rows = RunResults(language.measure(TINY, f"causal RoPE, {rule}", 0))
    assert rows.values("rule")[0] == rule
    assert {128, 512} == set(rows.values("n"))


def test_every_causal_length_is_judged_on_the_same_bytes(monkeypatch):
    asked = []

    class Blind(torch.nn.Module):
        def forward(self, tokens):
            asked.append(tokens[:, -5:])
            stats = type("Stats", (), {"entropy": torch.zeros(len(tokens), 1, tokens.shape[1])})
            return torch.zeros(*tokens.shape, 256), [stats]

    text = torch.randint(256, (language.HELD_OUT,))
    for n in (128, 512):
        language.judge(TINY, Blind(), "causal", text, n)
    assert torch.equal(*asked)


def test_a_test_leaves_the_model_as_it_was():
    model = byte_model("masked", "RoPE", "1/sqrt d", width=8, heads=2, layers=1)
    layer = model.stack.attentions[0]
    before = layer.scale, layer.positions
    way = language.Tested("x", [language.LogLengthFrom(64)], stretched=True, clipped=True)
    with language._changed(model, way, "RoPE", 2, 64, 4):
        assert model.stack.attentions[0] is not layer
        assert layer.positions.scaling.factor == 4
        assert layer.scale == language.LogLengthFrom(64)
    assert model.stack.attentions[0] is layer
    assert (layer.scale, layer.positions) == before
