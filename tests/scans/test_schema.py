"""scan.json is read strictly and says what is wrong where."""

import json
import math
import re
import typing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attentropy.scans import schema
from attentropy.scans.errors import ScanError
from attentropy.scans.judging.judge import diagnosed, slopes_of
from tests.report.synthetic import change_heads, make_scan


def broken(change) -> bytes:
    data = json.loads(schema.encode(make_scan(layers=2, heads=2, lengths=(64, 128))))
    change(data)
    return json.dumps(data).encode()


def test_what_is_written_is_read_back():
    scan = make_scan()
    assert schema.decode(schema.encode(scan)) == scan


def test_nothing_is_lost_in_the_file():
    scan = make_scan(layers=2, heads=2)
    change_heads(scan.measures[0], lse=0.1 + 0.2, output_norm=1e-300, likeness=math.nan)
    again = schema.decode(schema.encode(scan))
    assert again.measures[0].rows == scan.measures[0].rows
    assert diagnosed(again) == diagnosed(scan)
    assert slopes_of(again) == slopes_of(scan) == again.slopes
    assert again.plan == scan.plan


def test_tables_layers_and_lengths_are_read_off_the_rows():
    scan = make_scan(layers=3, heads=2, lengths=(64, 256))
    change_heads(scan.measures[0], entropy=lambda row: row.index + row.head / 10)
    change_heads(scan.measures[0], max_logit=lambda row: math.inf if row.head else 1.0)
    assert scan.measures[0].table("entropy") == [[0.0, 0.1], [1.0, 1.1], [2.0, 2.1]]
    assert scan.measures[0].table("H") == scan.measures[0].table("entropy")
    assert scan.measures[0].table("max_logit") == [[1.0, None]] * 3
    assert scan.lengths == [64, 256]
    assert [layer.place for layer in scan.layers] == [
        f"model.layers.{i}.self_attn" for i in range(3)
    ]
    assert scan.heads == 6
    scan.measures = []
    assert (scan.lengths, scan.layers, scan.heads) == ([], [], 0)


def test_a_scan_of_the_first_version_is_refused_clearly():
    old = json.dumps({"schema": "attentropy.scan", "version": 1, "layers": []}).encode()
    message = r"old\.json has version 1 of attentropy\.scan; this attentropy reads 2"
    with pytest.raises(ScanError, match=message):
        schema.decode(old, name="old.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="other"), "scan.json is not a file of attentropy.scan"),
        (
            lambda d: d.update(version=99),
            "has version 99 of attentropy.scan; this attentropy reads 2",
        ),
        (lambda d: d.update(surprise=1), "unknown field `surprise`"),
        (lambda d: d.pop("model"), "missing required field `model`"),
        (lambda d: d.update(seconds="long"), r"got `str` - at `\$.seconds`"),
        (lambda d: d["findings"][0].update(severity="awful"), r"at `\$.findings\[0\].severity`"),
        (
            lambda d: d["measures"].reverse(),
            r"measures must be of increasing lengths, got \[128, 64\]",
        ),
        (lambda d: d.update(measures=[]), r"measures must be of increasing lengths, got \[\]"),
        (lambda d: d["slopes"].pop(), "slopes must have one entry per head of every layer"),
        (lambda d: d["slopes"][0][0].update(against="x"), r"at `\$.slopes\[0\]\[0\].against`"),
        (lambda d: d["findings"][0].update(heads=[[9, 0]]), r"names head \(9, 0\)"),
        (
            lambda d: d["measures"][0]["rows"][1].update(mood=1.0),
            r"unknown field `mood` - at `\$.measures\[0\].rows\[1\]`",
        ),
        (
            lambda d: d["measures"][0]["rows"][1].pop("entropy"),
            r"missing required field `entropy` - at `\$.measures\[0\].rows\[1\]`",
        ),
        (
            lambda d: d["measures"][1]["rows"].pop(),
            "measure of length 128: rows must hold every head of every layer, in order",
        ),
        (
            lambda d: d["measures"][1]["rows"].reverse(),
            "measure of length 128: rows must hold every head of every layer, in order",
        ),
        (
            lambda d: d["measures"][0]["profiles"].pop(),
            "measure of length 64: profiles must have one entry per layer",
        ),
        (
            lambda d: d["measures"][0]["profiles"][1]["visible"].pop(),
            "profile of model.layers.1.self_attn: visible must have 24 entries",
        ),
        (
            lambda d: d["measures"][0]["profiles"][0]["entropy"][0].pop(),
            "self_attn: entropy must have 24 entries for each of 2 heads",
        ),
        (
            lambda d: d["plan"].update(lengths=[3]),
            r"lengths must be increasing integers from the reference 128, got \[3\] - at `\$.plan`",
        ),
        (lambda d: d["maps"].update(side=257), "maps.side must be between 1 and 256, got 257"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(change, message):
    with pytest.raises(ScanError, match=message):
        schema.decode(broken(change))


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[1, 2"])
def test_a_file_that_is_no_json_is_called_so(data):
    with pytest.raises(ScanError, match=r"mine\.json is not JSON"):
        schema.decode(data, name="mine.json")


@given(st.binary(max_size=60))
@settings(max_examples=100)
def test_any_bytes_give_a_scan_or_a_scan_error(data):
    with pytest.raises(ScanError):
        schema.decode(data)


def structs(kind, found):
    """Every struct that a file of this kind is made of."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in found:
        found.add(kind)
        for hint in typing.get_type_hints(kind).values():
            structs(hint, found)
    for part in typing.get_args(kind):
        structs(part, found)
    return found


def test_every_field_is_documented():
    parts = structs(schema.Scan, set())
    assert {part.__name__ for part in parts} >= {"Scan", "HeadRow", "Finding", "Plan", "Profile"}
    docs = Path(__file__).parents[2] / "docs"
    texts = [docs / "scan-schema.md", docs / "reference" / "statistics.md"]
    text = "".join(path.read_text(encoding="utf-8") for path in texts)
    fields = {field.name for part in parts for field in msgspec.structs.fields(part)}
    assert fields - set(re.findall(r"`(\w+)`", text)) == set()
