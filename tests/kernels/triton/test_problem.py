"""A call as bundles of pointers and sizes."""

import pytest
import torch

from attentropy.kernels.triton.configs import TileSizes
from attentropy.kernels.triton.problem import Problem, cut_width, padded, signed, table
from tests.kernels.triton.problems import call, problem, tensors


@pytest.mark.parametrize(("width", "want"), [(1, 16), (16, 16), (17, 32), (80, 128), (256, 256)])
def test_widths_are_padded_to_powers_of_two(width, want):
    assert padded(width) == want


def test_words_are_signed():
    assert [signed(x) for x in (0, 2**31 - 1, 2**31, 2**32 - 1)] == [0, 2**31 - 1, -(2**31), -1]


def test_sizes():
    made = problem(*tensors(9, 11))
    assert made.rows == (1, 2, 9)
    assert made.keys == 11
    assert made.width == 16
    assert made.precise


@pytest.mark.parametrize(
    ("terms", "laden", "hides"),
    [
        ({}, False, False),
        ({"hi": torch.full((1, 1, 9), 5, dtype=torch.int32)}, False, True),
        ({"table": torch.ones(9, 11).bool()[None, None]}, True, True),
        ({"bias": torch.zeros(1, 1, 9, 11)}, True, True),
        ({"relative": torch.zeros(2, 5)}, True, False),
        ({"slopes": torch.zeros(2)}, False, False),
        ({"dropout": 0.1, "seed": torch.tensor(3)}, True, False),
    ],
    ids=str,
)
def test_what_takes_registers_and_what_hides(terms, laden, hides):
    made = problem(*tensors(), **terms)
    assert (made.laden, made.hides) == (laden, hides)


def test_precision_by_dtype_and_load():
    q, k, v = tensors(width=160)
    assert problem(q, k, v).precision == "tf32x3"
    assert problem(q, k, v, bias=torch.zeros(1, 1, 9, 11)).precision == "ieee"
    assert problem(*(x.bfloat16() for x in (q, k, v))).precision is None


def test_terms_have_strides_of_zero_where_they_broadcast():
    q, k, v = tensors(batch=2)
    bias, lo = torch.randn(1, 2, 1, 11), torch.zeros(1, 1, 9, dtype=torch.int32)
    terms = problem(q, k, v, bias=bias, lo=lo, softcap=3.0, scale=torch.rand(1, 2, 1)).terms()
    assert terms.bias[1:] == (0, 11, 0, 1)
    assert terms.lo[1:] == (0, None, 1)  # the heads of an entry see the same keys
    assert terms.scale[1:] == (0, 1, None)
    assert terms.softcap == 3.0
    assert (terms.queries, terms.keys) == (9, 11)
    assert terms.mask is terms.hi is terms.relative is terms.slopes is None


def test_a_relative_bias_is_made_contiguous_and_one_row_serves_all_heads():
    q, k, v = tensors()
    made = Problem.of(call(q, k, v, relative=torch.randn(5, 2).T))
    assert made.call.relative.is_contiguous()
    assert table(made.call.relative)[1:] == (5, 2)
    assert table(torch.randn(1, 7))[1:] == (0, 3)


def test_dropout_by_its_threshold():
    q, k, v = tensors()
    assert problem(q, k, v).drop() is None
    drop = problem(q, k, v, dropout=0.25, seed=torch.tensor(2**33 + 5)).drop()
    assert (drop.low, drop.high) == (5, 2)
    assert drop.gain == pytest.approx(4 / 3)
    assert drop.threshold == 2**21
    assert problem(q, k, v, dropout=0.25).drop().low == 0
    assert problem(q, k, v, dropout=1 - 1e-9).drop().gain == 0


@pytest.mark.parametrize(
    ("width", "want"),
    [(1, (16, 0)), (24, (32, 0)), (40, (32, 16)), (64, (64, 0)), (80, (64, 16)), (96, (64, 32)),
     (100, (128, 0)), (160, (128, 32)), (256, (256, 0))],
)  # fmt: skip
def test_heads_are_cut_in_two_tiles_where_that_takes_fewer_columns(width, want):
    assert cut_width(width) == want
    made = problem(*tensors(width=width))
    assert made.width == sum(want)
    assert made.columns(TileSizes(16, 16, 4, 1)) == {
        "BLOCK_D": want[0], "TAIL_D": want[1], "BLOCK_V": 16, "TAIL_V": 0,
    }  # fmt: skip
    in_parts = made.columns(TileSizes(16, 16, 4, 1, part=16))
    assert in_parts == made.columns()
    assert (in_parts["BLOCK_D"], in_parts["TAIL_D"]) == (padded(width), 0)


def test_arguments_that_kernels_share():
    shared = problem(*tensors(width=20, value_width=40)).shared()
    assert (shared["D"], shared["DV"]) == (20, 40)
    assert (shared["heads"], shared["key_heads"]) == (2, 1)
    assert shared["SAFE"] is False
    assert problem(*tensors()).again()["SAFE"] is True


def test_steps_in_a_tile_fit_in_32_bits():
    far = torch.empty(1, device="meta").as_strided((1, 1, 300, 64), (0, 0, 1, 2**24))
    assert Problem.heads(far).j == 1
    near = torch.empty(1, 2, 300, 64, device="meta").transpose(1, 2).contiguous().transpose(1, 2)
    assert Problem.heads(near)[1:] == near.stride()
