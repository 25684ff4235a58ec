"""The table of statistics, and that everything else is read from it."""

import dataclasses
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

import attentropy as at
from attentropy.core import statistics
from attentropy.core.statistics import ALIASES, NAMES, TABLE, HeadRow, by_place
from attentropy.models.record.measures import READ, ROWS
from attentropy.models.record.rows import DERIVED
from attentropy.models.record.sampled import SAMPLED
from tests.rows import head_row


@pytest.mark.parametrize("name", NAMES)
def test_every_row_of_the_table_is_filled_in(name):
    one = TABLE[name]
    assert one.name == name
    for text in (one.symbol, one.label, one.formula, one.meaning, one.low, one.high):
        assert text == text.strip() != ""
    assert one.meaning.endswith(".")
    least, most = one.range
    assert least is None or most is None or least < most


def test_names_symbols_and_labels_are_unique():
    for field in ("name", "symbol", "label"):
        found = [getattr(one, field) for one in TABLE.values()]
        assert len(set(found)) == len(found)


def test_every_statistic_has_one_reading():
    summed = {name for name in ROWS if name in TABLE}
    sampled = {name for name in SAMPLED if name in TABLE}
    others = {"max_logit", "likeness"}  # a maximum, and products of pairs of heads
    for one, two in ((summed, sampled), (summed, set(DERIVED)), (sampled, set(DERIVED))):
        assert not one & two
    assert summed | sampled | set(DERIVED) | others == set(NAMES)
    assert {name for name in NAMES if TABLE[name].averaging == "maximum"} == {"max_logit"}
    derived = {name for name in NAMES if TABLE[name].averaging == "derived"}
    assert derived == {*DERIVED, "likeness"}
    assert {name for name in NAMES if TABLE[name].sampled == "always"} == sampled | {"likeness"}
    assert set(READ) <= summed


def test_head_stats_are_those_of_the_table_that_a_row_of_attention_has():
    stats = at.attend(*torch.randn(3, 1, 2, 5, 4), sink=torch.zeros(2)).stats
    known = [name for name in NAMES if hasattr(stats, name)]
    assert [f.name for f in dataclasses.fields(at.HeadStats)] == ["rows", *known]
    assert stats.per_head().keys() == ["rows", *known]


def random_stats(**options):
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, 9, 4, generator=generator, dtype=torch.float64)
    return at.attend(2 * q, k, v, mask=at.causal, **options)


@pytest.mark.parametrize("name", NAMES)
def test_numbers_lie_within_their_range(name):
    class Layer(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.scaled_dot_product_attention(3 * x, x, x, is_causal=True)

    with at.watch(layer := Layer(), sample=None) as w:
        layer(torch.randn(2, 3, 24, 8, generator=torch.Generator().manual_seed(0)))
    least, most = TABLE[name].range
    for row in w.heads():
        assert math.isfinite(row[name])
        assert least is None or row[name] >= least - 1e-6
        assert most is None or row[name] <= most + 1e-6


def test_sparsity_is_the_documents_name_for_the_density_s():
    flat = at.attend(torch.zeros(1, 1, 4, 4), *torch.randn(2, 1, 1, 4, 4)).stats
    assert torch.equal(flat.sparsity, flat.density)
    torch.testing.assert_close(flat.density, torch.ones(1, 1, 4))
    heads = random_stats().stats.per_head()
    assert torch.equal(heads["S"], heads.sparsity)
    assert torch.equal(heads["S"], heads.density)
    row = head_row(density=0.25)
    assert row["S"] == row.sparsity == row["sparsity"] == row["density"] == 0.25
    assert torch.equal(heads["sparsity"], heads.density)
    assert (TABLE["density"].low, TABLE["density"].high) == ("sparse", "dense")
    assert "sparsity" not in TABLE


def test_rows_are_mappings_by_name_or_symbol():
    row = head_row(entropy=1.5)
    assert row["entropy"] == row["H"] == dict(row)["entropy"] == 1.5
    assert ALIASES["H"] == "entropy"
    assert row["layer"] == "layers.0.attn"
    with pytest.raises(KeyError, match="mood"):
        row["mood"]
    heads = random_stats().stats.per_head()
    assert torch.equal(heads["Σp²"], heads.collision)


def test_a_row_survives_a_file_and_equals_itself():
    row = head_row(entropy=0.1 + 0.2, lse=-math.inf, output_norm=float("nan"), likeness=1e-300)
    again = msgspec.json.decode(msgspec.json.encode(row), type=HeadRow)
    assert again == msgspec.structs.replace(row, lse=math.nan)
    assert again.entropy == 0.1 + 0.2
    assert again.likeness == 1e-300
    assert math.isnan(again.output_norm)
    assert head_row(lse=float("nan")) == head_row(lse=-float("nan"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phase": "later"}, "phase"),
        ({"kind": "other"}, "kind"),
        ({"entropy": "1"}, "entropy"),
        ({"head": 1.5}, "head"),
        ({"mood": 1.0}, "unknown field `mood`"),
    ],
)
def test_a_wrong_row_is_refused(change, message):
    data = msgspec.to_builtins(head_row()) | change
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(data, HeadRow)


def test_a_missing_statistic_is_refused():
    data = msgspec.to_builtins(head_row())
    del data["entropy"]
    with pytest.raises(msgspec.ValidationError, match="missing required field `entropy`"):
        msgspec.convert(data, HeadRow)


def test_labels_say_layer_call_head_and_phase():
    assert head_row(3).label == "layers.0.attn.3"
    assert head_row(3, call=2).label == "layers.0.attn#2.3"
    assert head_row(3, phase="step").label == "layers.0.attn.3 (step)"
    assert head_row(call=2).place == "layers.0.attn#2"


def test_rows_of_one_place_stand_together_in_order():
    rows = [
        head_row(h, layer=layer, call=call)
        for h in (0, 1)
        for layer, call in (("b", 0), ("a", 0), ("a", 1))
    ]
    places = [[(row.layer, row.call, row.head) for row in heads] for heads in by_place(rows)]
    assert places == [
        [("b", 0, 0), ("b", 0, 1)],
        [("a", 0, 0), ("a", 0, 1)],
        [("a", 1, 0), ("a", 1, 1)],
    ]


def test_the_table_is_read_without_torch():
    code = (
        "import sys\nimport attentropy.core.statistics, attentropy.scans.schema\n"
        "import attentropy.training.runstore, attentropy.report\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_groups_follow_the_order_of_the_table():
    assert [n for n in NAMES if n in statistics.SUMMED] == list(statistics.SUMMED)
    assert [n for n in NAMES if n in statistics.SAMPLED] == list(statistics.SAMPLED)


DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_statistics_is_that_of_the_table():
    made = subprocess.run(
        [sys.executable, DOCS / "statistics_page.py"], capture_output=True, text=True, check=True
    ).stdout
    assert (DOCS / "reference" / "statistics.md").read_text(encoding="utf-8") == made


def insert(path, before, text):
    code = path.read_text(encoding="utf-8")
    assert code.count(before) == 1, before
    path.write_text(code.replace(before, text + before), encoding="utf-8")


FOLLOWED = """
import json, math, sys
from pathlib import Path
import torch
import attentropy as at
from attentropy.models.record.rows import from_json
from attentropy.report.payload import scan_payload
from attentropy.scans.schema import decode, encode
from attentropy.training import runstore
from attentropy.training.runstore import RunStore
from tests.scans.tiny import make

model = make()
assert Path(at.__file__).is_relative_to(sys.argv[1])
logged = {}
with at.Monitor(model, every=1, loggers=[RunStore("run.db"), lambda m, step: logged.update(m)]) as m:
    model.train()(torch.arange(40)[None]).sum().backward()
    m.step()
    rows = m.history[0].rows
for row in rows:
    assert math.isclose(row.bits, row.entropy / math.log(2), rel_tol=1e-6)
    assert row["H₂"] == row.bits
assert math.isclose(logged["attn/bits/mean"], sum(row.bits for row in rows) / len(rows))
assert math.isclose(runstore.read("run.db").metrics["bits"][0][0][0], rows[0].bits, rel_tol=1e-6)
with at.watch(model) as w:
    model(torch.arange(40)[None])
assert from_json(w.to_json()) == w.heads()
assert "bits" in str(w.table())
scan = at.scan(model.eval(), range(40), lengths=[16, 32])
assert decode(encode(scan)).measures[0].rows == scan.measures[0].rows
shown = scan_payload(scan)
assert "Entropy in bits" in [one["label"] for one in shown["statistics"]]
assert shown["scan"]["measures"][0]["statistics"]["bits"][0][0] > 0
"""


def test_a_statistic_is_added_by_a_row_and_its_reading(tmp_path):
    text = (DOCS / "contributing" / "architecture.md").read_text(encoding="utf-8")
    recipe = text.split("## Adding a statistic")[1].split("\n## ")[0]
    row, reading = re.findall(r"```py\n(.*?)```", recipe, flags=re.DOTALL)
    package = shutil.copytree(Path(at.__file__).parent, tmp_path / "attentropy")
    insert(package / "core" / "statistics.py", "    def __post_init__(self)", f"{row}\n")
    insert(package / "models" / "record" / "measures.py", '        "entropy": entropy,\n', reading)
    paths = os.pathsep.join((str(tmp_path), str(DOCS.parent)))
    done = subprocess.run(
        [sys.executable, "-c", FOLLOWED, str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
