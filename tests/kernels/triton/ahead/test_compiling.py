"""Types of arguments as Triton's compiler takes them, and that it takes every kernel."""

import os
import shutil
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch

from attentropy.kernels.triton.ahead.compiling import tool, typed

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="triton brings NVIDIA's tools on Linux only"
)


@linux
def test_nvidia_tools_are_there():
    assert shutil.which(tool("cuobjdump"))


class Pair(NamedTuple):
    ptr: torch.Tensor
    stride: int


def of(value, *, fixed=False):
    constants, aligned = {}, {}
    return typed(value, (3,), constants, aligned, fixed=fixed), constants, aligned


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (torch.empty(2, dtype=torch.bfloat16), "*bf16"),
        (torch.empty(2, dtype=torch.bool), "*i1"),
        (torch.empty(2, dtype=torch.int64), "*i64"),
        (0.5, "fp32"),
        (7, "i32"),
        (2**40 + 1, "i64"),
    ],
)
def test_kinds(value, kind):
    assert of(value)[0] == kind


def test_what_is_known_before_is_a_constant():
    assert of(None)[:2] == ("constexpr", {(3,): None})
    assert of(1)[:2] == ("constexpr", {(3,): 1})
    assert of(64, fixed=True)[:2] == ("constexpr", {(3,): 64})


def test_multiples_of_sixteen_are_noted_inside_bundles_too():
    kind, constants, aligned = of(Pair(torch.empty(4), 48))
    assert kind == Pair("*fp32", "i32")
    assert constants == {}
    assert set(aligned) == {(3, 0), (3, 1)}
    assert of(47)[2] == {}


PROGRAM = """
from attentropy.kernels.triton.ahead.cases import CompiledCase, launch_of
from attentropy.kernels.triton.ahead.compiling import compile_for
from attentropy.kernels.triton.configs import ROWWISE
for kernel in ("spread", "join", "coefficients"):
    used = compile_for(launch_of(CompiledCase(kernel, 16, "bfloat16", ROWWISE)), 80)
    print(kernel, used.spilled)
"""


@linux
@pytest.mark.whole
def test_kernels_that_no_prediction_compiles_do_compile():
    """The interpreter runs what the compiler refuses, such as a name of two types in a loop."""
    clean = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, capture_output=True, text=True, env=clean, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.split() == ["spread", "0", "join", "0", "coefficients", "0"]
