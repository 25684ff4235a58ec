"""Which tiles of keys and queries are seen by some rows, and which by all of them."""

import pytest
import torch
import triton
import triton.language as tl

from attentropy.kernels.triton.device.visibility import (
    key_span,
    load_row,
    query_span,
    span_table,
)
from attentropy.kernels.triton.plan_backward import empty_spans
from tests.kernels.triton.device.helpers import interpreted
from tests.kernels.triton.problems import problem, tensors

TILE = 16


@triton.jit
def keys_of(into, terms, first, ROWS: tl.constexpr, TILE: tl.constexpr):
    i = first + tl.arange(0, ROWS)[:, None]
    row = load_row(terms, 0, 0, i, i < terms.queries)
    begin, whole, rest, end = key_span(row, terms.keys, TILE)
    put(into, begin, whole, rest, end)


@triton.jit
def queries_of(into, terms, spans, first, TILE: tl.constexpr, BLOCK: tl.constexpr):
    begin, whole, rest, end = query_span(terms, spans, 0, 0, first, TILE, BLOCK)
    put(into, begin, whole, rest, end)


@triton.jit
def put(into, begin, whole, rest, end):
    tl.store(into, begin)
    tl.store(into + 1, whole)
    tl.store(into + 2, rest)
    tl.store(into + 3, end)


def bounds(kind, queries, keys):
    i = torch.arange(queries)
    lo, hi = {
        "full": (i * 0, i * 0 + keys),
        "causal": (i * 0, i + 1 + keys - queries),
        "window": (i - 20 + keys - queries, i + 1 + keys - queries),
        "ragged": (i * 7 % 13, keys - i * 5 % 17),
        "blind": (i * 0 + 9, torch.where(i % 2 == 0, 9, 40)),
    }[kind]
    return lo.clamp(0, keys).int().view(1, 1, -1), hi.clamp(0, keys).int().view(1, 1, -1)


KINDS = ["full", "causal", "window", "ragged", "blind"]


@interpreted
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [0, 32, 48])
def test_keys_that_rows_see(kind, first):
    lo, hi = bounds(kind, 60, 75)
    made = problem(*tensors(60, 75), lo=lo, hi=hi)
    into = torch.zeros(4, dtype=torch.int32)
    keys_of[(1,)](into, made.terms(), first, 16, TILE)
    begin, whole, rest, end = into.tolist()
    sees = made.call.seen.dense()[0, 0, first : first + 16]
    check(begin, whole, rest, end, sees)


@interpreted
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", [0, 32, 64])
@pytest.mark.parametrize("block", [16, 32])
def test_queries_that_see_keys(kind, first, block):
    lo, hi = bounds(kind, 60, 75)
    made = problem(*tensors(60, 75), lo=lo, hi=hi)
    into = torch.zeros(4, dtype=torch.int32)
    spans = empty_spans(made)
    span_table[(spans.ptr.shape[2],)](spans.ptr, made.terms(), 1)
    queries_of[(1,)](into, made.terms(), spans, first, TILE, block)
    begin, whole, rest, end = into.tolist()
    sees = made.call.seen.dense()[0, 0, :, first : first + block].T
    if sees.shape[0] < block:  # the block is ragged: no tile is whole
        assert whole == rest
    check(begin, whole, rest, end, sees)


def check(begin, whole, rest, end, sees):
    """Columns outside of begin .. end are seen by nobody, those of whole .. rest by everybody."""
    columns = sees.shape[1]
    assert whole <= rest
    assert begin <= whole or begin >= end
    assert begin % TILE == whole % TILE == rest % TILE == 0
    seen = sees.any(0).nonzero().flatten()
    if len(seen):
        assert begin <= seen.min()
        assert end > seen.max()
    for start in range(whole, min(rest, end), TILE):
        assert sees[:, start : min(start + TILE, columns)].all()


@interpreted
def test_a_dead_row_sees_nothing():
    made = problem(*tensors(5, 20))
    into = torch.zeros(4, dtype=torch.int32)
    keys_of[(1,)](into, made.terms(), 16, 16, TILE)
    begin, _, _, end = into.tolist()
    assert begin >= end
