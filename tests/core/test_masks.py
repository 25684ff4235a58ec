import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attentropy as at
from attentropy.core.masks import Extent, Mask, as_mask

CPU = torch.device("cpu")

DRAWN = {
    "causal": (at.causal, 4, 4, "#...\n##..\n###.\n####"),
    "aligned to the end": (at.causal, 2, 4, "###.\n####"),
    "more queries than keys": (at.causal, 4, 2, "..\n..\n#.\n##"),
    "three keys": (at.causal & at.lookback(3), 5, 5, "#....\n##...\n###..\n.###.\n..###"),
    "ahead": (at.lookahead(2) & at.lookback(1), 3, 3, "##.\n.##\n..#"),
    "prefix": (at.prefix(2), 3, 3, "##.\n##.\n##."),
    "prefix language model": (at.causal | at.prefix(2), 3, 3, "##.\n##.\n###"),
    "not causal": (~at.causal, 3, 3, ".##\n..#\n..."),
    "strided": (at.strided(2), 3, 3, "#.#\n.#.\n#.#"),
    "full": (at.full, 2, 3, "###\n###"),
    "nothing": (~at.full, 2, 2, "..\n.."),
    "dense": (at.dense(torch.eye(3, dtype=torch.bool)), 3, 3, "#..\n.#.\n..#"),
    "dense for any query": (at.dense(torch.tensor([True, False])), 2, 2, "#.\n#."),
    "a function": (as_mask(lambda b, h, q, k: q == k), 2, 3, "#..\n.#."),
    "documents": (at.documents(torch.tensor([5, 5, 1, 5])), 3, 4, "##..\n..#.\n...#"),
}


@pytest.mark.parametrize("name", DRAWN)
def test_drawings(name):
    mask, queries, keys, want = DRAWN[name]
    assert mask.draw(queries, keys) == want


def leaves(keys):
    size = st.integers(1, keys + 2)
    return st.one_of(
        st.sampled_from([at.causal, at.full]),
        size.map(at.lookback),
        size.map(at.lookahead),
        st.integers(0, keys + 2).map(at.prefix),
        st.lists(st.integers(0, 2), min_size=keys, max_size=keys).map(
            lambda ids: at.documents(torch.tensor(ids))
        ),
        st.integers(0, keys).map(lambda n: at.padding(torch.tensor([n]))),
    )


@given(st.data())
def test_intervals_tell_what_the_predicate_tells(data):
    keys = data.draw(st.integers(1, 9))
    queries = data.draw(st.integers(1, keys))
    mask = data.draw(leaves(keys))
    for _ in range(data.draw(st.integers(0, 3))):
        other = data.draw(leaves(keys))
        mask = data.draw(st.sampled_from([mask & other, mask | other, ~mask]))
    extent = Extent(1, 1, queries, keys, CPU)
    lo, hi = mask.interval(extent)
    k = torch.arange(keys)
    inside = torch.ones(1, 1, queries, keys, dtype=torch.bool)
    if lo is not None:
        inside &= k >= lo[..., None]
    if hi is not None:
        inside &= k < hi[..., None]
    seen = mask.dense(extent)
    if mask.is_interval:
        assert torch.equal(inside, seen), mask
    else:
        assert not (seen & ~inside).any(), mask


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 4))
def test_algebra_is_that_of_sets(queries, keys, size):
    a, b = at.causal, at.strided(size)
    extent = Extent(1, 1, queries, keys, CPU)
    x, y = a.dense(extent), b.dense(extent)
    assert torch.equal((a & b).dense(extent), x & y)
    assert torch.equal((a | b).dense(extent), x | y)
    assert torch.equal((~a).dense(extent), ~x)


def test_every_batch_entry_has_its_own_padding():
    mask = at.padding(torch.tensor([1, 3]))
    seen = mask.dense(Extent(2, 1, 1, 3, CPU))
    assert seen[:, 0, 0].tolist() == [[True, False, False], [True, True, True]]


def test_a_mask_is_a_mask_mod():
    b = h = torch.tensor(0)
    assert at.causal(b, h, torch.tensor(3), torch.tensor(3))
    assert not at.causal(b, h, torch.tensor(3), torch.tensor(4))


BAD = {
    "negative window": (lambda: at.lookback(-2), "lookback: size must be >= 1, got -2"),
    "no window": (lambda: at.lookahead(0), "lookahead: size must be >= 1, got 0"),
    "fraction": (lambda: at.lookback(2.5), "lookback: size must be an integer, got 2.5"),
    "prefix": (lambda: at.prefix(-1), "prefix: size must be >= 0, got -1"),
    "stride": (lambda: at.strided(0), "strided: step must be >= 1, got 0"),
    "floats": (lambda: at.padding(torch.ones(2)), "padding: lengths must be an integer tensor"),
    "no numbers": (lambda: at.padding("abc"), "padding: lengths must be an integer tensor, got 'a"),
    "numbers": (lambda: at.dense(torch.ones(2, 2)), "dense: visible must be a bool tensor, got"),
    "five": (lambda: at.dense(torch.ones(1, 1, 1, 1, 1).bool()), "of at most 4 dimensions"),
    "text": (lambda: at.causal & "x", "mask must be a Mask, a tensor or a function"),
    "too long": (
        lambda: at.padding(torch.tensor([5])).draw(2, 3),
        r"padding: lengths must be between 0 and the number of keys 3, got \[5\]",
    ),
    "other batch": (
        lambda: at.padding(torch.tensor([1, 2, 3])).dense(Extent(2, 1, 1, 3, CPU)),
        r"padding: lengths must be of shape \[B\] with B = 2, got \[3\]",
    ),
    "documents of another length": (
        lambda: at.documents(torch.tensor([0, 1])).draw(3),
        r"documents: ids must be of shape \[K\] or \[B,K\] with B = 1, K = 3, got \[1, 2\]",
    ),
    "queries without a document": (
        lambda: at.documents(torch.tensor([0, 1])).draw(3, 2),
        "documents: the number of queries must be at most the number of keys 2",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    make, message = BAD[name]
    with pytest.raises((ValueError, TypeError), match=message):
        make()


PICKLED = [
    at.full,
    at.causal,
    at.causal & at.lookback(3),
    at.causal | at.prefix(2),
    ~at.lookahead(2),
    at.strided(2),
    at.padding(torch.tensor([2, 5])),
    at.documents(torch.tensor([0, 0, 1, 1, 1])),
    at.dense(torch.eye(5).bool()) & at.causal,
]


@pytest.mark.parametrize("mask", PICKLED, ids=repr)
def test_masks_are_pickled_and_copied(mask):
    extent = Extent(2, 1, 5, 5, torch.device("cpu"))
    for other in (pickle.loads(pickle.dumps(mask)), copy.deepcopy(mask)):
        assert repr(other) == repr(mask)
        assert other.is_interval == mask.is_interval
        assert torch.equal(other.dense(extent), mask.dense(extent))


def test_a_copy_of_causal_is_causal_itself():
    assert copy.deepcopy(at.causal) is at.causal
    assert pickle.loads(pickle.dumps(at.causal)) is at.causal


def test_a_mask_made_by_hand_is_copied():
    mask = Mask(lambda w: w.k > 1, "late")
    assert copy.deepcopy(mask).draw(3) == mask.draw(3)


def test_integers_of_numpy():
    assert (at.causal & at.lookback(np.int64(2))).draw(3) == "#..\n##.\n.##"


def test_a_tensor_or_a_function_may_come_first():
    table = torch.ones(3, 3).tril().bool()
    assert (table & at.lookback(2)).draw(3) == (at.causal & at.lookback(2)).draw(3)
    assert (early | at.causal).draw(3) == (at.prefix(2) | at.causal).draw(3)


def early(b, h, q, k):
    return k < 2


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (lambda q, k: k <= q, r"mask must be a Mask, a tensor or a function of \(b, h, q, k\)"),
        (at.lookback, "mask must be a Mask, a tensor or a function"),
        (lambda b, h, q, k: True, r"mask <lambda>\(b, h, q, k\) must be a bool tensor, got True"),
        (lambda b, h, q, k: (k - q).float(), "must be a bool tensor, got torch.float32"),
        (lambda b, h, q, k: None, "must be a bool tensor, got None"),
    ],
)
def test_functions_that_are_no_masks(mask, message):
    q = torch.randn(1, 1, 3, 4)
    with pytest.raises(TypeError, match=message):
        at.attend(q, q, q, mask=mask)
