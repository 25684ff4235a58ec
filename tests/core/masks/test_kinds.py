"""Each kind of mask against a drawing, and what each of them refuses."""

import numpy as np
import pytest
import torch

import attentropy as at
from attentropy.core.masks import Extent, as_mask, between

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
    "between": (
        between(torch.tensor([0, 2, 9]), torch.tensor([1, 4, 2])),
        3,
        4,
        "#...\n..##\n....",
    ),
    "between for any query": (between(torch.tensor(1), torch.tensor(3)), 2, 4, ".##.\n.##."),
}


@pytest.mark.parametrize("name", DRAWN)
def test_drawings(name):
    mask, queries, keys, want = DRAWN[name]
    assert mask.draw(queries, keys) == want


def test_every_batch_entry_has_its_own_padding():
    mask = at.padding(torch.tensor([1, 3]))
    seen = mask.dense(Extent(2, 1, 1, 3, CPU))
    assert seen[:, 0, 0].tolist() == [[True, False, False], [True, True, True]]


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
    "bounds of fractions": (
        lambda: between(torch.tensor([0.5]), torch.tensor([1])),
        "between: lo must be an integer tensor, got torch.float32",
    ),
    "bounds of other queries": (
        lambda: between(torch.tensor([0, 0]), torch.tensor([1, 1])).draw(3),
        r"between: lo must be broadcastable to \[B,H,Q\] = \[1, 1, 3\], got \[1, 1, 2\]",
    ),
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


def test_integers_of_numpy():
    assert (at.causal & at.lookback(np.int64(2))).draw(3) == "#..\n##.\n.##"


def test_bounds_of_each_batch_entry_and_head():
    lo = torch.arange(2 * 3 * 4).view(2, 3, 4) % 5
    mask, extent = between(lo, torch.tensor(5)), Extent(2, 3, 4, 6, CPU)
    assert mask.is_interval
    want = [
        [[[int(lo[b, h, q]) <= k < 5 for k in range(6)] for q in range(4)] for h in range(3)]
        for b in range(2)
    ]
    assert mask.dense(extent).tolist() == want
    assert torch.equal(mask.interval(extent).lo, lo)


def test_queries_of_bounds_count_from_zero_whatever_the_keys_are():
    mask = between(torch.tensor([0, 1]), torch.tensor([1, 2]))
    assert mask.draw(2, 2) == "#.\n.#"
    assert mask.draw(2, 4) == "#...\n.#.."
