"""Which keys a row sees, against tables made pair by pair in Python."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attentropy as at
from attentropy.core.masks import Extent, as_mask
from attentropy.core.visibility import Limits, Span, Visibility

CPU = torch.device("cpu")


def extent(queries, keys, batch=1, heads=1):
    return Extent(batch, heads, queries, keys, CPU)


RULES = {
    "full": (at.full, lambda i, j, n: True),
    "causal": (at.causal, lambda i, j, n: j <= i),
    "window": (at.causal & at.lookback(3), lambda i, j, n: i - 3 < j <= i),
    "ahead": (at.lookahead(2), lambda i, j, n: j - i < 2),
    "prefix": (at.causal | at.prefix(2), lambda i, j, n: j <= i or j < 2),
    "strided": (at.causal & at.strided(2), lambda i, j, n: j <= i and (i - j) % 2 == 0),
    "not causal": (~at.causal, lambda i, j, n: j > i),
    "far, disjoint": (at.lookback(2) & ~at.lookback(4), lambda i, j, n: False),
    "behind the window": (at.causal & ~at.lookback(3), lambda i, j, n: j <= i - 3),
    "nobody": (at.prefix(0), lambda i, j, n: False),
}


def table(rule, queries, keys):
    """The dense table by plain loops, sharing no code with the library."""
    shift = keys - queries
    return [[bool(rule(i + shift, j, keys)) for j in range(keys)] for i in range(queries)]


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 5), (3, 7), (7, 3), (1, 6), (6, 1)])
def test_counts_are_those_of_a_table_made_by_loops(name, queries, keys):
    mask, rule = RULES[name]
    seen = Visibility.of_mask(mask, extent(queries, keys))
    want = table(rule, queries, keys)
    assert seen.dense()[0, 0].tolist() == want
    assert seen.visible.expand(1, 1, queries)[0, 0].tolist() == [sum(row) for row in want]


@pytest.mark.parametrize("name", RULES)
def test_stats_count_the_same(name):
    mask, rule = RULES[name]
    q = torch.randn(1, 1, 6, 4)
    stats = at.attend(q, q, q, mask=mask).stats
    assert stats.visible[0, 0].tolist() == [sum(row) for row in table(rule, 6, 6)]


def test_disjoint_bounds_see_nothing_and_never_less():
    lo = torch.tensor([[[4, 2, 0]]], dtype=torch.int32)
    hi = torch.tensor([[[1, 2, 3]]], dtype=torch.int32)
    seen = Visibility(extent(3, 5), lo, hi)
    assert seen.visible.tolist() == [[[0, 0, 3]]]
    assert seen.dense().sum(-1).tolist() == [[[0, 0, 3]]]


@given(st.data())
def test_a_selection_sees_what_the_whole_sees(data):
    queries, keys = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 7))
    mask, _ = RULES[data.draw(st.sampled_from(sorted(RULES)))]
    seen = Visibility.of_mask(mask, extent(queries, keys, batch=2, heads=2))
    index = data.draw(st.lists(st.integers(0, queries - 1), min_size=1, max_size=4))
    first = data.draw(st.integers(0, keys - 1))
    last = data.draw(st.integers(first + 1, keys))
    part = seen.select(Span(slice(1, 2), slice(0, 1), torch.tensor(index), slice(first, last)))
    want = seen.dense()[1:2, :1, index, first:last]
    assert torch.equal(part.dense(), want)
    assert torch.equal(part.visible.expand(1, 1, len(index)), want.sum(-1))
    again = part.select(Span(queries=slice(0, 1)))
    assert torch.equal(again.dense(), want[:, :, :1])
    alone = part.rebased()
    assert torch.equal(alone.dense(), want)
    assert alone.origin is None


@pytest.mark.parametrize("name", RULES)
def test_pairs_see_single_keys(name):
    seen = Visibility.of_mask(RULES[name][0], extent(4, 6))
    whole = seen.dense()[0, 0]
    for keys in ([0, 0, 0, 0], [5, 1, 3, 2], [-1, 6, 2, 9]):
        got = seen.pairs(torch.tensor(keys).view(1, 1, -1)).dense()[0, 0, :, 0].tolist()
        assert got == [0 <= j < 6 and bool(whole[i, j]) for i, j in enumerate(keys)]


def test_a_bias_of_minus_infinity_hides():
    added = torch.zeros(1, 1, 3, 4)
    added[0, 0, 1, :3] = -torch.inf
    seen = Visibility(extent(3, 4), added=added)
    assert seen.visible.tolist() == [[[4, 1, 4]]]
    assert not seen.is_interval


def test_large_tables_are_counted_in_slices(monkeypatch):
    monkeypatch.setattr("attentropy.core.visibility.SLICE", 8)
    mask = at.dense(torch.rand(2, 1, 9, 5) > 0.5)
    seen = Visibility.of_mask(mask, extent(9, 5, batch=2, heads=3))
    want = mask.table.sum(-1)
    assert torch.equal(seen.visible, want)
    padding = at.dense(torch.tensor([True, False, True, True, True]))
    short = Visibility.of_mask(padding, extent(9, 5))
    assert short.visible.expand(1, 1, 9).tolist() == [[[4] * 9]]


def test_every_pair_of_masks_meets_like_tables():
    for (one, a), (two, b) in itertools.product(RULES.values(), repeat=2):
        for joined, rule in (
            (one & two, lambda *x, a=a, b=b: a(*x) and b(*x)),
            (one | two, lambda *x, a=a, b=b: a(*x) or b(*x)),
        ):
            seen = Visibility.of_mask(joined, extent(5, 7))
            want = table(rule, 5, 7)
            assert seen.dense()[0, 0].tolist() == want, joined
            assert seen.visible[0, 0].tolist() == [sum(row) for row in want], joined


def test_a_float_mask_beside_bounds_hides_with_both():
    added = torch.zeros(4, 6)
    added[2, 1:3] = -torch.inf
    seen = Visibility.of_mask(at.causal & as_mask(added), extent(4, 6))
    assert seen.predicate is None
    assert seen.hi is not None
    want = table(lambda i, j, n: j <= i, 4, 6)
    want[2][1] = want[2][2] = False
    assert seen.dense()[0, 0].tolist() == want
    assert seen.visible.expand(1, 1, 4)[0, 0].tolist() == [sum(row) for row in want]


@pytest.mark.parametrize("name", RULES)
def test_a_table_in_place_of_a_predicate_shows_the_same(name):
    seen = Visibility.of_mask(RULES[name][0], extent(5, 7))
    tabled = seen.tabled()
    assert tabled.predicate is tabled.lo is tabled.hi is None
    assert torch.equal(tabled.dense(), seen.dense())


def test_limits_of_rows():
    seen = Visibility.of_mask(at.causal & at.lookback(3), extent(6, 6))
    assert seen.limits() == Limits((0, 3), (1, 6))
    late = seen.select(Span(queries=slice(4, 6))).limits()
    assert late == Limits((2, 3), (5, 6))
    assert late.hide(range(0, 2))
    assert not late.hide(range(0, 3))
    assert late.show(range(3, 5))
    assert not late.show(range(2, 5))
    assert Visibility.of_mask(None, extent(2, 5)).limits() == Limits((0, 0), (5, 5))
    assert seen.select(Span(queries=slice(0, 0))).limits() == Limits((0, 0), (0, 0))
