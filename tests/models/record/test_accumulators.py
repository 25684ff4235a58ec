"""Slots add up calls in place; owners tell calls and phases apart."""

import torch
from torch import nn

from attentropy.core.masks import Extent
from attentropy.core.resolve import Options, resolve
from attentropy.models.record.accumulators import CallSizes, Owner, Slot
from attentropy.models.record.measures import ROWS, HeadSums
from attentropy.models.record.model_call import ModelCall
from attentropy.models.record.model_masks import causal_from_end, everything
from attentropy.models.record.recorder import Recorder
from attentropy.models.record.sampled import SAMPLED

CPU = torch.device("cpu")
PARTS = len(ROWS) + len(SAMPLED)


def sums(value, heads=3):
    whole = torch.full((PARTS + heads, heads), float(value), dtype=torch.float64)
    return HeadSums(whole, torch.full((heads,), float(value), dtype=torch.float64))


def slot(heads=3):
    return Slot(heads, device=CPU)


def test_sums_add_up_and_the_largest_stays():
    one = slot()
    held = one.sums.data_ptr()
    one.add(sums(2))
    one.add(sums(-1))
    assert one.rows.tolist() == [[1.0] * 3] * len(ROWS)
    assert one.sampled.tolist() == [[1.0] * 3] * len(SAMPLED)
    assert one.overlap.tolist() == [[1.0] * 3] * 3
    assert one.top.tolist() == [2.0] * 3
    assert one.heads == 3
    assert one.sums.data_ptr() == held  # a compiled graph writes there


def test_clearing_keeps_the_memory():
    one = slot()
    held = one.sums.data_ptr()
    one.add(sums(2))
    one.length = 5
    one.clear()
    assert not one.sums.any()
    assert one.top.isneginf().all()
    assert one.length == 0
    assert one.sums.data_ptr() == held


def test_merging_is_adding():
    one, other = slot(), slot()
    one.add(sums(1))
    other.add(sums(4))
    other.length, other.head_dim, other.is_causal = 9, 8, True
    one.merge(other)
    assert one.rows[0].tolist() == [5.0] * 3
    assert one.top.tolist() == [4.0] * 3
    assert (one.length, one.head_dim, one.is_causal) == (9, 8, True)


def test_a_call_is_described_by_its_sizes():
    one, q, k = slot(2), torch.randn(1, 2, 3, 4), torch.randn(1, 2, 7, 4)
    extent = Extent(1, 2, 3, 7, CPU)
    mask = causal_from_end(extent)
    one.describe(CallSizes.of(ModelCall(resolve(q, k, k, Options(mask=mask.seen)), mask)))
    assert (one.length, one.head_dim, one.is_causal) == (7, 4, True)
    mask = everything(extent)
    one.describe(CallSizes.of(ModelCall(resolve(q, k, k, Options(mask=mask.seen)), mask)))
    assert not one.is_causal


def test_owners_keep_a_slot_for_each_place():
    owner = Owner("attn", Recorder(every=1, keep="mean", sample=8))
    places = [owner.place("forward", 3), owner.place("forward", 4), owner.place("step", 3)]
    places += [
        owner.place("forward", 3, kind="cross"),
        owner.place("forward", 3, operator="softmax"),
    ]
    slots = [owner.slot_of(place, device=CPU) for place in places]
    assert len({id(one) for one in slots}) == len(owner.slots) == 5
    assert owner.slot_of(places[1], device=CPU) is slots[1]
    assert slots[1].heads == 4


def test_calls_are_counted_by_operator_within_a_forward_pass():
    recorder = Recorder(every=1, keep="mean", sample=8)
    owner = Owner("attn", recorder)
    recorder.owners.append(owner)
    recorder.begin(nn.Identity())
    one, other = owner.place("forward", 3), owner.place("forward", 3, operator="softmax")
    counted = [owner.counted(place, inside=True).call for place in (one, other, one)]
    assert counted == [0, 0, 1]
    recorder.begin(nn.Identity())
    assert owner.counted(one, inside=True).call == 0
    recorder.end()
    assert owner.counted(one, inside=False).call == 0  # a module that is called by itself


def test_an_owner_knows_the_arguments_while_its_module_runs():
    owner = Owner("", Recorder(every=1, keep="mean", sample=8))
    assert not owner.ran
    owner.softmaxes = 3
    owner.enter((1,), {"a": 2})
    assert (owner.given, owner.softmaxes, owner.ran) == (((1,), {"a": 2}), 0, True)
    owner.leave()
    assert owner.given == ((), {})
