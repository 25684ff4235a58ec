"""What is compiled ahead of time, and how each case looks."""

import pytest
import torch

from attentropy.kernels.triton.ahead.cases import (
    EVERYTHING,
    LENGTH,
    LONE,
    CompiledCase,
    launch_of,
    problem,
)
from attentropy.kernels.triton.configs import ROWWISE


def test_what_is_compiled_to_decode_is_what_its_name_says():
    for kernel, partial, safe in (
        ("decode", True, False), ("unsplit decode", False, False), ("safe decode", False, True)
    ):  # fmt: skip
        args = launch_of(CompiledCase(kernel, 64, "bfloat16", ROWWISE)).args
        assert args["PACK"]
        assert (args["partial"] is not None, args["SAFE"]) == (partial, safe)
    join = launch_of(CompiledCase("join", 64, "bfloat16", ROWWISE))
    assert join.kernel.__name__ == "join"


@pytest.mark.parametrize(
    ("feature", "there"),
    [
        ("full", {}),
        ("window", {"lo", "hi"}),
        ("bool mask", {"mask"}),
        ("float bias", {"bias"}),
        ("relative bias", {"hi", "relative"}),
        ("ALiBi", {"hi", "slopes"}),
        ("softcap", {"hi", "softcap"}),
        (EVERYTHING, {"lo", "hi", "mask", "bias", "relative", "slopes", "softcap"}),
    ],
)
def test_a_feature_is_in_the_terms(feature, there):
    made = problem(CompiledCase("forward", 64, "bfloat16", ROWWISE, feature))
    terms = made.terms()._asdict()
    optional = ("lo", "hi", "mask", "bias", "relative", "slopes", "softcap")
    assert {name for name in optional if terms[name] is not None} == set(there)
    assert (made.drop() is not None) == (feature == EVERYTHING)


def test_tensors_hold_nothing():
    made = problem(CompiledCase("queries", 128, "float32", ROWWISE))
    assert made.call.q.is_meta
    assert made.rows == (4, 32, LENGTH)
    assert made.call.q.dtype == torch.float32


def test_the_gradient_of_the_output_alone_has_no_other():
    lone = launch_of(CompiledCase("queries", 64, "bfloat16", ROWWISE, LONE)).args["slopes"]
    assert lone.linear is None
    assert lone.collision is None
    whole = launch_of(CompiledCase("queries", 64, "bfloat16", ROWWISE)).args["slopes"]
    assert whole.linear is not None
