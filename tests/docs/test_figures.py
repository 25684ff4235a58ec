"""Figures that pages quote are those of the committed runs."""

import json
import re
from pathlib import Path

import pytest

from attentropy.lab.harness.results import RunResults

ROOT = Path(__file__).parents[2]
SCORES = ["gaussian", "gaussian, spread 1", "planted", "bounded", "real heads"]
RULES = ["1/sqrt d", "log n/log m/sqrt d", "log n/d", "HoldEntropy", "n"]


def drifts():
    """How far the entropy moves from the fewest to the most keys: [scores][rules]."""
    path = ROOT / "docs/results/2026-11-17/scales/results.json"
    rows = RunResults(json.loads(path.read_text(encoding="utf-8"))["rows"])
    found = []
    for scores in SCORES:
        chosen = rows.where(condition=scores)
        ends = [f(chosen.values("n")) for f in (min, max)]
        few, many = ({r: chosen.mean("entropy", rule=r, n=n) for r in RULES} for n in ends)
        found.append([many[rule] - few[rule] for rule in RULES])
    return found


@pytest.mark.parametrize("page", ["explanation/why-log-n.md", "zh/explanation/why-log-n.md"])
def test_the_table_of_why_log_n_is_that_of_the_committed_run(page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    lines = [x for x in text.splitlines() if re.match(r"\| [^|$]+ \| [+-]\d", x)]
    assert len(lines) == len(SCORES)
    for line, wanted in zip(lines, drifts(), strict=True):
        told = [cell.strip() for cell in line.strip("|").split("|")[1:]]
        for cell, drift in zip(told, wanted, strict=True):
            assert not cell or cell == f"{drift:+.2f}", line
    assert sum(bool(cell.strip()) for x in lines for cell in x.strip("|").split("|")[1:]) == 21


@pytest.mark.parametrize("page", ["explanation/why-log-n.md", "zh/explanation/why-log-n.md"])
def test_the_deficit_of_a_million_keys_at_64(page):
    from attentropy.lab.claims import CLAIMS

    numbers = CLAIMS["001-§23"].measure().numbers
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert f"{numbers['deficit_d64']:.1f}" in text
    assert f"{numbers['log_n']:.1f}" in text


COUNTED = {
    "README.md": "{all} checked, {false} false",
    "CHANGELOG.md": "{all}, of which {false} are false",
    "docs/claims.md": "{all} statements of the documents:\n\n- **holds** ({holds})",
    "docs/explanation/mathematics.md": "Of their statements {all} can be checked,\nand {false} of",
    "docs/zh/claims.md": "文档中的论断 {all} 条：\n\n- **成立**（{holds}）",
    "docs/zh/explanation/mathematics.md": "共 {all} 条，其中 {false} 条按原文是错的",
}


@pytest.mark.parametrize("page", COUNTED)
def test_statements_are_counted_as_the_code_counts_them(page):
    from attentropy.lab.claims import CLAIMS

    verdicts = [claim.expected for claim in CLAIMS.values() if claim.of_documents]
    counts = {name: verdicts.count(name) for name in ("holds", "cond", "approx", "false")}
    assert sum(counts.values()) == len(verdicts)
    text = (ROOT / page).read_text(encoding="utf-8")
    assert COUNTED[page].format(all=len(verdicts), **counts) in text


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("README.md", "{} experiments with seeds"),
        ("docs/howto/experiments.md", "The lab has {} experiments"),
        ("docs/zh/howto/experiments.md", "实验室里有{}个"),
    ],
)
def test_experiments_are_counted_as_the_code_counts_them(page, words):
    from attentropy.lab.harness.registry import HOMES

    names = {20: ("Twenty", "twenty", "二十"), 21: ("Twenty-one", "twenty-one", "二十一")}
    text = (ROOT / page).read_text(encoding="utf-8")
    assert any(words.format(name) in text for name in names[len(HOMES)])
