"""Tiles are loaded with zeros around them, and multiplied whole or in parts."""

import pytest
import torch
import triton
import triton.language as tl

from attentropy.kernels.triton.device.tiles import add_seen, dot, load, narrow, product, spoiled
from attentropy.kernels.triton.problem import Problem
from tests.kernels.triton.device.helpers import interpreted


@triton.jit
def loaded(into, x, first, count, N: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    i = first + tl.arange(0, N)
    tile = load(x, (0, 1, i, i < count), WIDTH, BLOCK, True)
    tl.store(into + tl.arange(0, N)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :], tile)


@triton.jit
def multiplied(
    into, x, y, count, N: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PART: tl.constexpr
):
    i = tl.arange(0, N)
    rows = (0, 1, i, i < count)
    if PART:
        s = product(x, rows, y, rows, N, N, WIDTH, PART, None)
    else:
        s = dot(
            load(x, rows, WIDTH, BLOCK, True), tl.trans(load(y, rows, WIDTH, BLOCK, True)), None
        )
    tl.store(into + i[:, None] * N + i[None, :], s)


@triton.jit
def rounded(into, x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(into + i, narrow(tl.load(x + i), into.dtype.element_ty))


@triton.jit
def added(
    into, a_ptr, seen_ptr, x, total, N: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    i, d = tl.arange(0, N), tl.arange(0, BLOCK)
    at = i[:, None] * N + i[None, :]
    acc = tl.zeros((N, BLOCK), tl.float32)
    seen = tl.load(seen_ptr + at) != 0
    acc = add_seen(acc, tl.load(a_ptr + at), seen, x, 0, 1, 0, total, WIDTH, BLOCK)
    tl.store(into + i[:, None] * BLOCK + d[None, :], acc)


@triton.jit
def found_bad(into, x, count, N: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(
        into + i,
        spoiled(load(x, (0, 0, i, i < count), WIDTH, BLOCK, True).to(tl.float32)).to(tl.int32),
    )


def heads(x):
    return Problem.heads(x)


@interpreted
def test_rows_beyond_the_end_and_columns_beyond_the_width_are_zero():
    x = torch.randn(1, 2, 20, 10)
    into = torch.full((16, 16), torch.nan)
    loaded[(1,)](into, heads(x), 8, 20, 16, 10, 16)
    want = torch.zeros(16, 16)
    want[:12, :10] = x[0, 1, 8:]
    assert torch.equal(into, want)


@interpreted
@pytest.mark.parametrize("part", [0, 16])
def test_products_whole_and_in_parts(part):
    x, y = torch.randn(1, 2, 13, 40), torch.randn(1, 2, 13, 40).transpose(2, 3).contiguous().mT
    into = torch.full((16, 16), torch.nan)
    multiplied[(1,)](into, heads(x), heads(y), 13, 16, 40, 64, part)
    torch.testing.assert_close(into[:13, :13], x[0, 1] @ y[0, 1].T)
    assert not into[13:].any()


@interpreted
def test_numbers_are_rounded_to_the_nearest():
    x = torch.tensor([1.0, 1.00390625, 1.01171875, -3.3e38, torch.inf, torch.nan, 0.1, 1e-40])
    into = torch.zeros(8, dtype=torch.bfloat16)
    rounded[(1,)](into, x, 8)
    torch.testing.assert_close(into, x.bfloat16(), equal_nan=True)


@interpreted
def test_a_hidden_nan_meets_nothing():
    x = torch.randn(1, 2, 16, 10)
    x[0, 1, 3] = torch.nan
    seen = torch.rand(16, 16) > 0.5
    seen[:8, 3], seen[8:, 3] = False, True
    a = torch.randn(16, 16).where(seen, 0.0)
    into = torch.full((16, 16), torch.nan)
    added[(1,)](into, a, seen.int(), heads(x), 16, 16, 10, 16)
    clean = x[0, 1].nan_to_num(0.0)
    torch.testing.assert_close(into[:8, :10], (a @ clean)[:8], atol=1e-5, rtol=1e-5)
    assert into[8:, :10].isnan().all()


@interpreted
def test_rows_that_are_not_finite_are_found():
    x = torch.randn(16, 10)
    x[2, 9], x[5, 0] = torch.nan, -torch.inf
    into = torch.zeros(16, dtype=torch.int32)
    found_bad[(1,)](into, heads(x[None, None]), 16, 16, 10, 16)
    assert into.nonzero().flatten().tolist() == [2, 5]
    found_bad[(1,)](into, heads(x[None, None]), 5, 16, 10, 16)
    assert into.nonzero().flatten().tolist() == [2]
