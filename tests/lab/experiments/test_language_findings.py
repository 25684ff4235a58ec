import pytest

from attentropy.lab.experiments.language_findings import CLIPPED, LOG, PLAIN, conclude
from attentropy.lab.harness.results import RunResults


def measured(task, model, rule, levels, **more):
    """Rows of two seeds at the trained length and at four times it."""
    home = {"masked": 64, "causal": 128}[task]
    for times, level in zip((1, 4), levels, strict=True):
        for seed in (0, 1):
            yield {"task": task, "model": model, "rule": rule, "n": home * times, "seed": seed,
                   "accuracy": level + seed, "entropy": 1.0 + times, **more}  # fmt: skip


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

    said = conclude(rows((43.0, 30.0), (42.6, 35.5)))
    assert "at 1x is met, to gain 5 at 4x is met (+5.5 ± 0.0, paired over 2 seeds" in said[0]
    assert "at 4x 13.0 and +5.5 ± 0.0 (published: 20.2 and +11.0)" in said[1]
    assert "at 1x is not met" in conclude(rows((43.0, 30.0), (42.4, 35.5)))[0]
    assert "gain 5 at 4x is not met" in conclude(rows((43.0, 30.0), (43.0, 34.9)))[0]


def test_what_a_model_loses_is_told_apart_by_cause():
    rows = [
        *measured("causal", "RoPE", PLAIN, (50.0, 20.0)),
        *measured("causal", "RoPE", CLIPPED, (50.0, 45.0)),
        *measured("causal", "RoPE", f"{CLIPPED}, log n at test", (50.0, 48.0)),
    ]
    (why,) = [line for line in conclude(RunResults(rows)) if line.startswith("Why causal RoPE")]
    assert "at 4x: it loses 30.0 points. It loses 5.0 if far keys" in why
    assert why.endswith("2.0 if log n sharpens these rows as well.")


@pytest.mark.parametrize(("change", "word"), [(-0.5, "helps"), (0.5, "hurts")])
def test_a_loss_that_falls_helps(change, word):
    rows = [
        *measured("causal", "RoPE", PLAIN, (50.0, 20.0), loss=2.0),
        *measured("causal", "RoPE", LOG, (50.0, 20.0), loss=2.0 + change),
    ]
    (line,) = [line for line in conclude(RunResults(rows)) if line.startswith("Does log n alone")]
    assert f"with log n at test only, by {change:+.2f} ± 0.00 at 4x ({word})" in line


def test_rules_of_training_are_compared_with_the_plain_one():
    rows = [
        *measured("masked", "RoPE", PLAIN, (40.0, 30.0)),
        *measured("masked", "RoPE", "mixed 1", (41.0, 33.0)),
    ]
    (line,) = [line for line in conclude(RunResults(rows)) if line.startswith("Trained with other")]
    assert line.endswith("mixed 1, +1.0 ± 0.0 at 1x, +3.0 ± 0.0 at 4x.")


def test_entropies_are_compared_between_the_lengths():
    rows = list(measured("masked", "no positions", PLAIN, (16.0, 15.0)))
    said = conclude(RunResults(rows))
    (line,) = [line for line in said if line.startswith("From 1x to 4x the entropy of masked")]
    assert line.endswith("by +3.00 with 1/sqrt d. Uniform rows would gain log 4 = 1.39.")
    assert any("They reach 16.5 %" in line for line in said), "a bag of bytes cannot do better"
