import io

import pytest
from rich.console import Console

import attentropy as at
from attentropy.extensions.candidates import TRUNCATED, UNTOUCHED, Setting, Task
from attentropy.extensions.reading import Attempt
from attentropy.extensions.record import ExtensionError, Record
from attentropy.extensions.result import Extension
from attentropy.models.losses.buckets import Bucket
from attentropy.models.rope import settings
from tests.scans.tiny import make

KINDS = {
    TRUNCATED: Setting(name=TRUNCATED, truncated=True),
    UNTOUCHED: Setting(name=UNTOUCHED),
    "yarn": Setting(name="yarn", rope=settings.yarn(trained=64, to=96)),
    "window": Setting(name="window", window=60, sinks=4),
    "cheap": Setting(name="cheap", rope=settings.linear(trained=64, to=96)),
}
WOBBLE = (0.0, 0.01, -0.01, 0.005)


def extension(exported=False, texts=2, **measured):
    """Trials of two texts; each candidate has a mean loss and a mean loss of digits."""
    record = Record(task=Task(model="Tiny", trained=64, to=96, layers={"a": 2}), text="", last=32)
    for name, (loss, digits) in measured.items():
        record.candidates.append(KINDS[name])
        for window in range(texts):
            spread = [w * (1 + window + len(name) % 3) for w in WOBBLE]
            keys = () if digits is None else tuple(digits + 5 * s for s in spread)
            record.trials.append(
                Attempt(
                    candidate=name,
                    window=window,
                    losses=tuple(loss + s for s in spread),
                    buckets=(Bucket(start=1, stop=96, loss=loss, error=None),),
                    digits=keys,
                    hits=tuple(key < 1 for key in keys),
                )
            )
    return Extension(record, make(), exported=exported)


def test_retrieval_decides_among_those_that_keep_the_loss():
    found = extension(
        truncated=(3.0, 1.4), untouched=(4.0, 2.5), yarn=(3.01, 0.7), cheap=(3.2, 0.5)
    )
    assert found.ranked == ["yarn", "cheap"]
    assert found.best.name == "yarn"
    assert found.plan.rope.rope_type == "yarn"
    assert found.plan.helps
    assert found.plan.judged.change.difference == pytest.approx(-0.99, abs=0.02)
    assert found.plan.judged.truncation.difference == pytest.approx(0.01, abs=0.02)
    assert "use yarn: the loss of the last 32 tokens is 3.0" in found.sentence
    assert "and 8 of 8 passkeys are found" in found.sentence
    assert found.call == 'at.steer(model, at.Plan.load("plan.json"))'
    assert found.leaders(1) == ["yarn"], "the untouched model is clearly worse"


def test_without_passkeys_loss_decides():
    found = extension(truncated=(3.0, None), untouched=(3.4, None), window=(2.8, None))
    assert found.best.name == "window"
    assert found.plan is None
    assert found.call == "at.steer(model, mask=at.lookback(60) | at.prefix(4))"
    assert "passkeys" not in found.sentence


def test_what_does_not_beat_truncation_is_not_offered():
    found = extension(truncated=(3.0, None), untouched=(3.4, None), yarn=(3.0, None))
    assert (found.best, found.plan, found.call) == (None, None, None)
    assert found.sentence == (
        "At 96 tokens nothing that was tried beats reading the last 64 only by two standard errors."
    )
    with pytest.raises(
        ExtensionError, match="nothing is exported, because nothing that was tried he"
    ):
        found.export("somewhere")


def test_a_model_that_needs_nothing_is_told_so():
    found = extension(truncated=(3.0, 1.4), untouched=(2.9, 0.4), yarn=(2.95, 0.6))
    assert found.best is None
    assert "the model needs no extension: untouched, its loss is" in found.sentence
    assert UNTOUCHED in found.leaders(1)


def test_for_an_export_only_what_can_be_exported_is_chosen():
    measured = {"truncated": (3.0, 1.4), "window": (2.9, 0.2), "yarn": (3.0, 0.7)}
    assert extension(**measured).best.name == "window"
    with pytest.raises(ExtensionError, match="window cannot be exported: a window with sinks"):
        extension(**measured).export("somewhere")
    assert extension(exported=True, **measured).best.name == "yarn"


def test_the_table_and_the_curves_hold_what_was_measured(tmp_path):
    found = extension(truncated=(3.0, 1.4), untouched=(4.0, 2.5), yarn=(3.01, 0.7))
    console = Console(width=160, file=io.StringIO())
    console.print(found.table())
    text = console.file.getvalue()
    assert text.index("yarn") < text.index("truncated") < text.index("untouched")
    assert "8 of 8" in text
    assert "+1.00" in text
    assert {row["candidate"] for row in found.curves()} == {"untouched", "yarn"}
    found.save(tmp_path / "extend.json")
    assert Record.load(tmp_path / "extend.json") == found.record
    assert isinstance(found, at.Extension)


def test_a_candidate_that_read_fewer_texts_comes_last():
    found = extension(truncated=(3.0, 1.4), yarn=(3.01, 0.7), cheap=(2.9, 0.1))
    found.record.trials = [
        trial for trial in found.record.trials if (trial.candidate, trial.window) != ("cheap", 1)
    ]
    assert found.ranked == ["yarn", "cheap"]
    assert found.best.name == "yarn"
