import pytest
import torch

from attentropy.lab.experiments import language
from attentropy.lab.harness.results import RunResults
from attentropy.lab.subjects.byte_models import KeyNorm, byte_model
from attentropy.lab.subjects.small_model import MASK
from attentropy.nn.norms import QKNorm

TINY = language.LanguageConfig(
    width=8, heads=2, layers=1, steps=20, longer=20, tokens=256, times=(1, 4), tested=512, windows=2
)
SIZES = {"width": 8, "heads": 2, "layers": 1}


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
    model = byte_model("masked", "RoPE", "1/sqrt d", **SIZES)
    layer = model.stack.attentions[0]
    before = layer.scale, layer.positions
    way = language.Tested("x", [language.LogLengthFrom(64)], stretched=True, clipped=True)
    with language._changed(model, way, "RoPE", 2, 64, 4):
        assert model.stack.attentions[0] is not layer
        assert layer.positions.scaling.factor == 4
        assert layer.scale == language.LogLengthFrom(64)
    assert model.stack.attentions[0] is layer
    assert (layer.scale, layer.positions) == before


def test_log_n_is_trained_as_plain_at_the_trained_length():
    layer = byte_model("causal", "GAU 64 RoPE 100", "log n", **SIZES).stack.attentions[0]
    plain = byte_model("causal", "GAU RoPE", "1/sqrt d", **SIZES).stack.attentions[0]
    visible = torch.tensor([128.0, 128.0**2]).view(1, 1, 2)
    want = torch.tensor([1.0, 2.0]) * layer.key_dim**-0.5
    assert plain.scale is None
    assert (layer.key_dim, plain.key_dim) == (64, 128)
    assert torch.allclose(layer.scale(layer.key_dim, visible).flatten(), want)


def test_key_norm_leaves_queries():
    norm, x = KeyNorm(4), torch.randn(3, 4)
    q, k = norm(x, x)
    assert torch.equal(q, x)
    assert torch.equal(k, QKNorm(4).keys(x))
    assert [name for name, _ in norm.named_parameters()] == ["k.weight"]


def test_the_first_sentence_judges_the_aims():
    def rows(plain, log):
        names = ("1/sqrt d", plain), ("1/sqrt d, log n at test", log)
        about = {"task": "masked", "model": "GAU RoPE"}
        return RunResults(
            {**about, "seed": seed, "rule": rule, "n": 64 * x, "accuracy": level + seed,
             "entropy": 1.0}
            for rule, levels in names
            for x, level in zip((1, 4), levels, strict=True)
            for seed in (0, 1)
        )  # fmt: skip

    said = language.conclude(rows((43.0, 30.0), (42.6, 35.5)))
    assert "at 1x is met, that of 5 gained at 4x is met (+5.5 ± 0.0, paired over 2 seeds" in said[0]
    assert "4x 13.0 and +5.5 ± 0.0 (20.2 and +11.0)" in said[1]
    assert "at 1x is not met" in language.conclude(rows((43.0, 30.0), (42.4, 35.5)))[0]
    assert "gained at 4x is not met" in language.conclude(rows((43.0, 30.0), (43.0, 34.9)))[0]
