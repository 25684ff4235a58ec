"""The numbers of the page, which come from the rows and from the table of statistics."""

import json
import math

import pytest

from attentropy.core.statistics import TABLE
from attentropy.report.payload import DESCRIBED, SHOWN, rounded, scan_payload
from tests.report.synthetic import change_heads, make_scan


def test_maps_that_do_not_fit_are_left_out_last(monkeypatch):
    scan = make_scan()
    one = len(scan.maps.data["0.0"])
    monkeypatch.setattr("attentropy.report.payload.MAP_BUDGET", 3 * one)
    kept = scan_payload(scan)["scan"]["maps"]["data"]
    first = scan.findings[0].heads[0]
    assert 1 <= len(kept) < len(scan.maps.data)
    assert f"{first[0]}.{first[1]}" in kept


def test_rounding_keeps_significant_digits_and_drops_what_is_not_finite():
    given = {"a": [1.23456789, float("nan"), 3], "b": None}
    assert rounded(given, 3) == {"a": [1.23, None, 3], "b": None}


def test_statistics_are_described_by_the_table():
    assert list(DESCRIBED) == list(TABLE)
    for name, one in TABLE.items():
        shown = DESCRIBED[name]
        assert (shown["label"], shown["formula"]) == (one.label, one.formula)
        assert shown["shades"] == one.shades
    assert {name for name in TABLE if TABLE[name].shown} == set(SHOWN)
    json.dumps(DESCRIBED, allow_nan=False)


def test_density_says_on_the_page_that_one_is_dense():
    one = next(one for one in scan_payload(make_scan())["statistics"] if one["symbol"] == "S")
    assert one["label"] == "Density S"
    assert (one["low"], one["high"]) == ("sparse", "dense")
    assert "1 when all keys weigh alike (dense)" in one["meaning"]


def test_tables_slopes_and_profiles_have_the_shape_of_the_model():
    scan = make_scan(layers=2, heads=3, lengths=(64, 128))
    change_heads(scan.measures[0], entropy=lambda row: math.nan if row.head else 1.23456789)
    shown = scan_payload(scan)["scan"]
    assert shown["measures"][0]["statistics"]["entropy"] == [[1.2346, None, None]] * 2
    assert set(shown["measures"][0]["statistics"]) == {*TABLE, "slope"}
    slopes = [[slope.value for slope in layer] for layer in scan.slopes]
    assert shown["measures"][1]["statistics"]["slope"] == [
        pytest.approx(layer, rel=1e-3) for layer in slopes
    ]
    assert [len(layer) for layer in shown["slopes"]] == [3, 3]
    assert set(shown["slopes"][0][0]) == {"value", "against"}
    assert [len(profile["entropy"]) for profile in shown["measures"][0]["profiles"]] == [3, 3]
    assert shown["layers"][1] == {"name": "model.layers.1.self_attn", "heads": 3, "causal": True}
    assert shown["plan"]["unheld"] == [(0, 0)]
    assert [one["length"] for one in shown["plan"]["effects"]] == [64, 128]
