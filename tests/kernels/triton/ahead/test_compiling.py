"""Types of arguments as Triton's compiler takes them; compiling itself is in test_resources."""

import shutil
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
