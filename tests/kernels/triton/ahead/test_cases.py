"""What is compiled ahead of time, and how each case looks."""

import pytest
import torch

from attentropy.kernels.triton.ahead.cases import (
    EVERYTHING,
    FEATURES,
    LENGTH,
    LONE,
    ROWS,
    CompiledCase,
    cases,
    launch_of,
    problem,
    served,
)
from attentropy.kernels.triton.configs import ROWWISE, TABLE


def test_every_configuration_is_compiled_and_as_it_would_be_chosen():
    used = set()
    for case in cases():
        assert case.config in launch_of(case).choices
        if case.kernel in ROWS:
            assert case.config == ROWWISE[0]
            continue
        kernel = next(name for name in TABLE if case.kernel in served(name))
        assert case.config in problem(case).configs(kernel)
        used.add((kernel, case.dtype == "float32", case.width, problem(case).laden, case.config))
    wanted = {
        (name.removeprefix("laden "), precise, width, name.startswith("laden"), config)
        for name, kinds in TABLE.items()
        for precise, widths in kinds.items()
        for width, choices in widths.items()
        for config in choices
    }
    assert wanted <= used
    assert {case.feature for case in cases()} == {"causal", EVERYTHING, *FEATURES}


def test_what_is_compiled_to_decode_is_what_its_name_says():
    for kernel, partial, safe in (
        ("decode", True, False), ("unsplit decode", False, False), ("safe decode", False, True)
    ):  # fmt: skip
        args = launch_of(CompiledCase(kernel, 64, "bfloat16", ROWWISE[0])).args
        assert args["PACK"]
        assert (args["partial"] is not None, args["SAFE"]) == (partial, safe)
    join = launch_of(CompiledCase("join", 64, "bfloat16", ROWWISE[0]))
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
    made = problem(CompiledCase("forward", 64, "bfloat16", ROWWISE[0], feature))
    terms = made.terms()._asdict()
    optional = ("lo", "hi", "mask", "bias", "relative", "slopes", "softcap")
    assert {name for name in optional if terms[name] is not None} == set(there)
    assert (made.drop() is not None) == (feature == EVERYTHING)


def test_tensors_hold_nothing():
    made = problem(CompiledCase("queries", 128, "float32", ROWWISE[0]))
    assert made.call.q.is_meta
    assert made.rows == (4, 32, LENGTH)
    assert made.call.q.dtype == torch.float32


def test_the_gradient_of_the_output_alone_has_no_other():
    lone = launch_of(CompiledCase("queries", 64, "bfloat16", ROWWISE[0], LONE)).args["slopes"]
    assert lone.entropy is None
    assert lone.collision is None
    whole = launch_of(CompiledCase("queries", 64, "bfloat16", ROWWISE[0])).args["slopes"]
    assert whole.entropy is not None
