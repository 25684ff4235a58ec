import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from attentropy.theory import CATALOGUE

REFERENCE = json.loads((Path(__file__).parent / "reference_values.json").read_text())


def numbers(value):
    return np.atleast_1d(np.array(value, dtype=float))


@pytest.mark.parametrize("row", REFERENCE, ids=[row["id"] for row in REFERENCE])
def test_reference_value(row):
    got, wanted = numbers(CATALOGUE[row["function"]](**row["inputs"])), numbers(row["expected"])
    for a, b in zip(got, wanted, strict=True):
        bound = row["tol"] * (abs(b) if b else 1)
        assert a == b or abs(a - b) <= bound, (a, b)


def test_every_reference_function_has_an_entry_and_nothing_else():
    assert {row["function"] for row in REFERENCE} == set(CATALOGUE)


def test_entries_carry_formula_source_and_domain():
    for entry in CATALOGUE.values():
        assert entry.formula
        assert entry.domain
        assert entry.source in {"000", "001", "002", "003", "004", "ID", "REM"}


def test_text_is_taken_for_numbers_and_answers_are_plain():
    assert CATALOGUE["softmax_entropy"](scores=["-inf", "0", 0]) == pytest.approx(math.log(2))
    assert isinstance(CATALOGUE["S_exp"](beta="0", gamma="1"), float)
    assert isinstance(CATALOGUE["entropy_grad"](scores=[1.0, 2.0]), list)
    assert CATALOGUE["worst_entropy_deficit_range"](range="inf") == math.inf


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("S_decay", {"lam": 1.5, "n": 3}, "lam must be in [0, 1], got 1.5"),
        ("S_decay", {"lam": 0.5, "n": 0}, "n must be finite and >= 1, got 0"),
        ("S_relu2", {"beta": 0.0, "gamma": -1.0}, "gamma must be finite and >= 0, got -1.0"),
        ("S_exp", {"beta": math.inf, "gamma": 1.0}, "beta must be finite, got inf"),
        ("mgf_laplace", {"b": 0.0}, "b must be finite and > 0, got 0.0"),
        ("mgf_laplace", {"b": -1.0}, "b must be finite and > 0, got -1.0"),
        ("gaussian_expected_entropy", {"n": 0.5, "x": 1.0}, "n must be finite and >= 1, got 0.5"),
        ("gaussian_expected_entropy", {"n": 5, "x": -1.0}, "x must be finite and >= 0, got -1.0"),
        ("worst_entropy_deficit", {"tau": 0.0}, "tau must be finite and > 0, got 0.0"),
        ("required_range", {"n": 4, "H": 9.0}, "H must be in [0, log n], got 9.0"),
        ("frozen_entropy", {"m": 1.2}, "m must be in [0, 1], got 1.2"),
        ("geometric_entropy", {"lam": -0.1}, "lam must be in [0, 1], got -0.1"),
        ("noise_relative_variance", {"kind": "cauchy", "scale": 1.0}, "kind must be one of"),
        ("softmax_inf1_norm", {"p": [0.5, 0.6]}, "p must be probabilities that sum to 1, got 1.1"),
        ("softmax_entropy", {"scores": []}, "scores must be a vector"),
        ("softmax_entropy", {"scores": [math.nan]}, "scores must be below +inf and not NaN"),
        ("S_linear_iid", {"sigma": 1.0, "mu": 1.0, "q": [-1.0]}, "q must be finite and >= 0"),
        ("S_exp", {"beta": "zero", "gamma": 1.0}, "beta must be a number, got zero"),
        ("S_exp", {"gamma": 1.0}, "inputs of S_exp must be exactly beta, gamma, got gamma"),
        ("S_exp", {}, "inputs of S_exp must be exactly beta, gamma, got nothing"),
        (
            "delta_ratio_mean",
            {"EX": 1, "EY": 0, "CovXY": 0, "VarY": 1},
            "EY must be finite and not 0",
        ),
        (
            "merge_states",
            {"blocks": [[1.0]], "values": [[]]},
            "values must be as long as its block",
        ),
    ],
)
def test_bad_input_names_the_keyword_and_its_domain(name, inputs, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        CATALOGUE[name](**inputs)


@pytest.mark.parametrize(
    ("name", "inputs", "value"),
    [
        ("mgf_gaussian", {"sigma": 100.0}, math.inf),
        ("mgf_uniform", {"a": 1e4}, math.inf),
        ("mgf_laplace", {"b": 3.0}, math.inf),
        ("noise_relative_variance", {"kind": "gaussian", "scale": 60.0}, math.inf),
        ("noise_relative_variance", {"kind": "laplace", "scale": 0.5}, math.inf),
        ("frozen_entropy", {"m": 1.0}, math.inf),
        ("geometric_entropy", {"lam": 1.0}, math.inf),
        ("gaussian_scale_for_entropy", {"n": 10, "H": 0.0}, math.inf),
        ("gaussian_entropy_2nd_order", {"n": 10, "x": 50.0}, math.inf),
        ("worst_entropy_deficit_range", {"range": "inf"}, math.inf),
        ("S_exp", {"beta": 1000.0, "gamma": 1e6}, 0.0),
        ("S_relu2", {"beta": -1000.0, "gamma": 1e-6}, 0.0),
        ("S_relu2", {"beta": 1000.0, "gamma": 1e-6}, 1.0),
        ("S_relu2", {"beta": 1.0, "gamma": 0.0}, 1.0),
        ("S_relu2", {"beta": -1.0, "gamma": 0.0}, 0.0),
        ("S_identity", {"beta": 0.0, "gamma": 0.0}, 1.0),
        ("gaussian_expected_entropy", {"n": 1, "x": 3.0}, 0.0),
        ("gaussian_expected_entropy", {"n": 8, "x": 0.0}, math.log(8)),
        ("gaussian_expected_sum_p2", {"n": 8, "x": 0.0}, 1 / 8),
        ("logsumexp", {"scores": ["-inf", "-inf"]}, -math.inf),
        ("softmax_entropy", {"scores": ["-inf", "-inf"]}, 0.0),
        ("softmax_entropy", {"scores": [1e308, -1e308]}, 0.0),
    ],
)
def test_ends_of_the_domain(name, inputs, value):
    assert CATALOGUE[name](**inputs) == value


def test_empty_row_merges_to_the_identity():
    wanted = [-math.inf, 0.0, 0.0, 0.0, 0.0, -math.inf, 0.0]
    assert CATALOGUE["merge_states"](blocks=[[], ["-inf"]], values=[[], [3.0]]) == wanted


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("S_exp", {"beta": 1j, "gamma": 1.0}, "beta must be a real number, got 1j"),
        (
            "softmax_entropy",
            {"scores": [[1.0], [1.0, 2.0]]},
            "scores must be real numbers, in rows",
        ),
        ("S_linear_iid", {"sigma": 1, "mu": 1, "q": [[1], [1, 2]]}, "q must be real numbers"),
        ("merge_states", {"blocks": [[1.0]], "values": []}, "values must be as many as blocks, 1"),
        ("merge_states", {"blocks": [1.0], "values": [2.0]}, "blocks must be a list of lists"),
        ("merge_states", {"blocks": None, "values": [[2.0]]}, "blocks must be a list of lists"),
        ("merge_states", {"blocks": [[1.0]], "values": [[1.0, 2.0]]}, "values must be as long as"),
    ],
)
def test_inputs_that_are_no_numbers(name, inputs, message):
    with pytest.raises(ValueError, match=message):
        CATALOGUE[name](**inputs)
