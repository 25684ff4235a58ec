"""Predictions as a table, and as the time of a case."""

import pytest
import torch

from attentropy.core.errors import ArgumentError
from attentropy.kernels.triton.ahead.model.prediction import SpeedPrediction
from attentropy.lab.bench import predicted
from attentropy.lab.bench.contenders import BenchCase
from attentropy.lab.bench.predicted import architectures, calls, columns, planned, seconds, whole


def prediction(kernel="forward", percent=50.0):
    return SpeedPrediction(
        kernel=kernel, arch="sm_80", width=64, dtype="bfloat16", tiles="64 x 64", percent=percent,
        plain_percent=80.0, ratio=0.62, limit="issue", per_pair=12.5, waste=1.0, wgmma=False,
        registers=168, spilled=8, programs=3,
    )  # fmt: skip


def test_names_and_numbers():
    assert architectures("sm_90,sm_80") == [90, 80]
    assert whole("32, 64") == [32, 64]
    with pytest.raises(ArgumentError, match="predict must be names out of"):
        architectures("sm_75")
    with pytest.raises(ArgumentError, match="widths must be whole numbers with commas between"):
        whole("wide")


def test_kinds_of_calls():
    assert calls("float bias, softcap") == ["float bias", "softcap"]
    assert calls("all")[0] == "causal"
    assert len(calls("all")) == 6
    with pytest.raises(ArgumentError, match=r"calls must be all, or names out of .*, got 'bias'"):
        calls("causal,bias")


def test_one_prediction_for_each_kernel(monkeypatch):
    monkeypatch.setattr(predicted, "predict", lambda kernel, **given: (kernel, given["width"]))
    found = [one() for one in planned([80, 90], widths=[64], dtypes=["bfloat16 "])]
    assert found == [("forward", 64), ("queries", 64), ("keys", 64)] * 2
    monkeypatch.setattr(predicted, "predict", lambda kernel, **given: given["feature"])
    features = ["causal", "dropout"]
    found = [one() for one in planned([80], widths=[64], dtypes=["float16"], features=features)]
    assert found == ["causal"] * 3 + ["dropout"] * 3
    with pytest.raises(ArgumentError, match="widths must be between"):
        planned([80], widths=[300], dtypes=["bfloat16"])


def test_a_row_for_each():
    assert columns([prediction(), prediction("keys")]).row_count == 2


def test_seconds_of_a_case(monkeypatch):
    monkeypatch.setattr(predicted, "predict", lambda kernel, **given: prediction(kernel))
    case = BenchCase(1, 8, 4096, 64, dtype=torch.bfloat16)
    pairs = 8 * 4096**2
    assert seconds(case, arch=80) == pytest.approx(2 * 2 * pairs * 64 / (0.5 * 312e12))
    both = seconds(case._replace(backward=True), arch=80)
    assert both == pytest.approx((2 + 3 + 4) / 2 * seconds(case, arch=80))
    assert seconds(case, arch=75) is None
    assert seconds(case._replace(queries=1), arch=80) is None
