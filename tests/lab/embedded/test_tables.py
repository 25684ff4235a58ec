import io
import math

import pytest
import torch
from rich.console import Console

from attentropy.lab.embedded import load_embedded, probe, sample_bytes, tables


@pytest.fixture(scope="module")
def model():
    return load_embedded()


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Fewer lengths and windows than the tables of the page."""
    monkeypatch.setattr(tables, "LENGTHS", (64, 128))
    few = {"count": 2}
    for name in ("text_loss", "copy_loss", "windows", "repeats"):
        whole = getattr(probe, name)
        monkeypatch.setattr(
            tables, name, lambda *given, whole=whole, **more: whole(*given, **(more | few))
        )


def cells(table):
    return [list(column.cells) for column in table.columns]


def test_perplexities_are_those_of_the_probe(model):
    table = tables.length_table(model, sample_bytes(), {"as trained": None})
    kinds, rules, *lengths = cells(table)
    assert (kinds, rules) == (["plain", "repeated"], ["as trained"] * 2)
    plain = probe.text_loss(model, sample_bytes(), 128, count=2)
    again = probe.copy_loss(model, sample_bytes(), 128, count=2)
    assert lengths[1] == [f"{math.exp(plain):.3f}", f"{math.exp(again):.3f}"]


def test_rules_are_named_by_the_scale_that_applies_them(model):
    rules = tables.candidate_rules(model, sample_bytes())
    assert list(rules)[:2] == ["as trained", "LogLengthFrom(128)"]
    held = rules["HoldEntropy(128, spread of the head)"](0, torch.tensor([128.0]))
    assert held == pytest.approx(torch.ones_like(held)), "at the trained length nothing changes"
    (names, *_) = cells(tables.entropy_table(model, sample_bytes(), rules))
    assert names == list(rules)


def test_every_head_has_a_row(model):
    profile = probe.head_profile(model, probe.repeats(sample_bytes(), 128, count=2)[:, :-1])
    layers, heads, induction, *_ = cells(tables.head_table(profile))
    assert len(layers) == model.shape.layers * model.shape.heads
    assert (layers[-1], heads[-1]) == ("4", "3")
    assert float(induction[5]) == pytest.approx(profile.induction[1, 1].item(), abs=5e-4)


def test_everything_is_printed(model):
    text = io.StringIO()
    tables.print_evaluation(model, sample_bytes(), console=Console(file=text, width=160))
    for part in ("perplexity per byte", "attention entropy", "heads at length 128", "bible-kjv"):
        assert part in text.getvalue()
