import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attentropy.core.errors import ArgumentError
from attentropy.lab.experiments.contexts import words
from attentropy.lab.harness.results import RunResults
from attentropy.lab.harness.run_plan import RunPlan
from attentropy.lab.harness.runner import run

SMALL = words.WordsConfig(
    vocabulary=256, width=16, layers=2, keys=8, stages=(2, 4), times=(1, 4), tested=512, batch=4
)


def test_a_stage_goes_on_from_the_one_before(tmp_path):
    one, two = tmp_path / "in stages", tmp_path / "at once"
    words.measure(SMALL, "2 steps", 3, kept=one)
    two.mkdir()
    shutil.copy(one / "pieces.pt", two)  # made anew, pieces may be numbered differently
    resumed, whole = (words.measure(SMALL, "4 steps", 3, kept=kept) for kept in (one, two))
    assert resumed[1:] == whole[1:]
    assert torch.load(one / "seed3.pt", weights_only=True)["step"] == 4


def test_rows_tables_and_conclusion(tmp_path):
    experiment = replace(words.EXPERIMENT, full=SMALL)
    results = run(RunPlan(experiment, seeds=1), tmp_path / "run")
    assert sorted(results.values("n")) == [64, 256]
    assert results.where(n=64).over("gain").mean == 0  # log n equals 1/sqrt d at the trained length
    said = words.conclude(results)
    assert "As training goes on, log n gains at 256 pieces, in points: " in said[-2]
    assert (tmp_path / "run" / "kept" / "pieces.pt").exists()


def test_the_gain_is_the_difference_of_the_accuracies():
    rows = RunResults(words.measure(SMALL, "2 steps", 0))
    plain, log = (rows.mean("accuracy", n=256, rule=r) for r in (words.PLAIN, words.LOG))
    assert rows.mean("gain", n=256) == pytest.approx(log - plain)


def test_a_text_is_named_with_its_digest(tmp_path):
    (tmp_path / "a.txt").write_text("words and pieces of words. " * 4000)
    config = words.with_text(tmp_path).full
    assert config.text == str(tmp_path)
    assert len(config.sha256) == 12
    with pytest.raises(ArgumentError):
        words.with_text(Path(__file__))
