"""What masks have in common: algebra, intervals, numbers to add, copies, functions and tensors."""

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attentropy as at
from attentropy.core.masks import Extent, Mask, all_of, as_mask, between

CPU = torch.device("cpu")
FLOAT = torch.tensor([[0.0, -torch.inf], [0.5, 1.0]])


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


def test_a_mask_is_a_mask_mod():
    b = h = torch.tensor(0)
    assert at.causal(b, h, torch.tensor(3), torch.tensor(3))
    assert not at.causal(b, h, torch.tensor(3), torch.tensor(4))


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
    between(torch.tensor([0, 1, 1, 2, 3]), torch.tensor(4)),
    as_mask(torch.zeros(5, 5).masked_fill(torch.eye(5).bool(), -torch.inf)) & at.causal,
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


def test_a_float_mask_adds_and_its_infinities_hide():
    mask = as_mask(FLOAT)
    assert mask.is_interval
    assert mask.added is FLOAT
    assert mask.draw(2) == "#.\n##"
    zero = torch.tensor(0)
    assert not mask(zero, zero, zero, torch.tensor(1))
    assert mask(zero, zero, torch.tensor(1), torch.tensor(1))


def test_float_masks_add_up_and_keep_the_interval_of_others():
    both = as_mask(FLOAT) & at.causal & as_mask(torch.ones(2, 1, 1, 2))
    assert both.is_interval
    assert torch.equal(both.added, FLOAT + torch.ones(2, 1, 1, 2))
    assert both.draw(2) == "#.\n##"
    assert torch.equal(both.interval(Extent(1, 1, 2, 2, CPU)).hi, torch.tensor([[[1, 2]]]))


@pytest.mark.parametrize(
    "make", [lambda m: ~m, lambda m: m | at.causal, lambda m: at.causal | m], ids=["~", "|", "or"]
)
def test_float_masks_only_meet(make):
    with pytest.raises(TypeError, match=r"mask [~|] must be of masks that only show and hide keys"):
        make(as_mask(FLOAT))


def test_gradients_reach_a_float_mask_through_the_algebra():
    q, bias = torch.randn(1, 1, 4, 8), torch.randn(4, 4, requires_grad=True)
    at.attend(q, q, q, mask=at.causal & as_mask(bias)).stats.entropy.sum().backward()
    assert bias.grad.tril().any()
    assert not bias.grad.triu(1).any()


def test_all_of_leaves_out_what_is_not_there():
    assert all_of([]) is None
    assert all_of([None, None]) is None
    assert all_of([None, at.causal, None]) is at.causal
    joined = all_of([at.causal, torch.ones(3, 3).tril(-1).bool(), early, None])
    assert joined.draw(3) == "...\n#..\n##."


def test_tensors_that_are_no_masks():
    with pytest.raises(
        TypeError, match="mask must be a Mask, or a bool or float tensor, got torch"
    ):
        as_mask(torch.ones(2, 2).int())
    with pytest.raises(ValueError, match="mask must be of at most 4 dimensions"):
        as_mask(torch.ones(1, 1, 1, 2, 2))
