"""scan.json is read strictly and says what is wrong where."""

import json
import math
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attentropy.scans import schema
from attentropy.scans.judging.statistics import STATISTIC
from tests.report.synthetic import make_scan


def broken(change) -> bytes:
    data = json.loads(schema.encode(make_scan(layers=2, heads=2, lengths=(64, 128))))
    change(data)
    return json.dumps(data).encode()


def test_what_is_written_is_read_back():
    scan = make_scan()
    assert schema.decode(schema.encode(scan)) == scan


def test_numbers_that_do_not_exist_become_null():
    scan = make_scan(layers=1, heads=1)
    scan.measures[0].statistics["entropy"][0][0] = math.nan
    read = schema.decode(schema.encode(scan))
    assert read.measures[0].statistics["entropy"][0][0] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema="other"), "scan.json is not a scan: its field 'schema'"),
        (lambda d: d.update(version=99), "has schema version 99; this attentropy reads 1"),
        (lambda d: d.update(surprise=1), "unknown field `surprise`"),
        (lambda d: d.pop("model"), "missing required field `model`"),
        (lambda d: d.update(seconds="long"), r"got `str` - at `\$.seconds`"),
        (lambda d: d["findings"][0].update(severity="awful"), r"at `\$.findings\[0\].severity`"),
        (lambda d: d.update(lengths=[128, 64]), r"lengths must increase, got \[128, 64\]"),
        (lambda d: d.update(lengths=[64]), "measures must hold one entry for each of lengths"),
        (lambda d: d.update(layers=[]), "layers must be non-empty"),
        (lambda d: d["slopes"].pop(), "slopes must have one number per head of every layer"),
        (lambda d: d["findings"][0].update(heads=[[9, 0]]), r"names head \(9, 0\)"),
        (
            lambda d: d["measures"][0]["statistics"].update(mood=[[1, 2], [3, 4]]),
            "measure of length 64: unknown statistic 'mood'",
        ),
        (
            lambda d: d["measures"][1]["statistics"]["entropy"].pop(),
            "measure of length 128: entropy must have one number per head",
        ),
        (
            lambda d: d["measures"][0]["profile"]["visible"].pop(),
            "profile.visible must have 24 entries",
        ),
        (
            lambda d: d["measures"][0]["profile"]["entropy"][0][0].pop(),
            "every curve of profile.entropy must have 24 entries",
        ),
        (lambda d: d["maps"].update(side=257), "maps.side must be between 1 and 256, got 257"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(change, message):
    with pytest.raises(schema.ScanError, match=message):
        schema.decode(broken(change))


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[1, 2"])
def test_a_file_that_is_no_json_is_called_so(data):
    with pytest.raises(schema.ScanError, match=r"mine\.json is not JSON"):
        schema.decode(data, name="mine.json")


@given(st.binary(max_size=60))
@settings(max_examples=100)
def test_any_bytes_give_a_scan_or_a_scan_error(data):
    with pytest.raises(schema.ScanError):
        schema.decode(data)


def test_every_field_and_statistic_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "scan-schema.md").read_text(encoding="utf-8")
    parts = [value for value in vars(schema).values() if isinstance(value, type)]
    fields = {
        field.name
        for part in parts
        if issubclass(part, msgspec.Struct)
        for field in msgspec.structs.fields(part)
    }
    named = set(re.findall(r"`(\w+)`", text))
    assert fields | set(STATISTIC) <= named
