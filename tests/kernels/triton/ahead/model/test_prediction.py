"""Predictions: small kernels are compiled here, larger ones by `attentropy bench --predict`."""

import os
import subprocess
import sys

import pytest

from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.kernels.triton.ahead.cases import CompiledCase
from attentropy.kernels.triton.ahead.model.prediction import (
    PRODUCTS,
    SpeedPrediction,
    check,
    predict,
    usual_tiles,
)
from attentropy.kernels.triton.ahead.model.sticks import LADEN_STICKS, STICKS
from attentropy.kernels.triton.configs import HALF, INTERPRETED, LADEN, WIDTHS
from tests.kernels.triton.device.helpers import interpreted

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="triton brings NVIDIA's tools on Linux only"
)
FIELDS = {
    "kernel", "arch", "width", "dtype", "percent", "plain_percent", "ratio", "waste", "wgmma",
    "registers", "spilled",
}  # fmt: skip


def test_what_the_model_does_not_know_is_refused():
    with pytest.raises(ArgumentError, match=r"predict must be names out of .*, got sm_70"):
        check(arch=70, width=64, dtype="bfloat16")
    with pytest.raises(ArgumentError, match="widths must be between 1 and 256, got 512"):
        check(arch=80, width=512, dtype="bfloat16")
    with pytest.raises(ArgumentError, match=r"dtypes must be names out of .*, got 'int8'"):
        check(arch=80, width=64, dtype="int8")


@interpreted
def test_the_interpreter_compiles_nothing():
    with pytest.raises(UnsupportedError, match="needs TRITON_INTERPRET unset"):
        predict("forward", arch=80, width=64)


def test_every_case_has_a_measuring_stick():
    for sticks in (*STICKS.values(), *LADEN_STICKS.values()):
        for kernel in PRODUCTS:
            for arch in (80, 90):
                assert sorted(sticks[kernel][arch]) == list(WIDTHS)


@pytest.mark.parametrize(
    ("feature", "asked", "want"),
    [
        ("causal", {"entropy"}, HALF["forward"][90][64]),
        ("causal", {"lse"}, HALF["bare forward"][90][64]),
        ("float bias", {"entropy"}, LADEN["forward"][64]),
    ],
)
def test_a_prediction_has_the_tiles_of_its_call(feature, asked, want):
    case = CompiledCase("forward", 64, "bfloat16", INTERPRETED, feature)
    assert usual_tiles(case, arch=90, asked=frozenset(asked)) == want


PROGRAM = """
import json
from dataclasses import asdict
from attentropy.kernels.triton.ahead.model.prediction import predict
from attentropy.kernels.triton.configs import TileSizes
found = predict("queries", arch={arch}, width=16, tiles=TileSizes(64, 32, 4, 2))
print(json.dumps(asdict(found)))
"""


def predicted(arch):
    clean = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    program = PROGRAM.format(arch=arch)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=clean
    )
    return SpeedPrediction(**__import__("json").loads(run.stdout))


@linux
@pytest.mark.whole
def test_a_kernel_is_compiled_and_compared_with_plain_flash_attention():
    found = predicted(90)
    assert found.as_dict().keys() == FIELDS
    assert (found.kernel, found.arch, found.width) == ("queries", "sm_90", 16)
    assert found.waste == 1.0
    assert found.wgmma
    assert found.ratio == pytest.approx(found.percent / found.plain_percent, abs=0.02)
    assert 0 < found.percent < 100
    assert found.registers <= 255
