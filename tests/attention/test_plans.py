"""Which calls share a plan, and that the second call of a kind answers as the first."""

import multiprocessing
import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import attentropy as at
from attentropy.attention import plans
from attentropy.attention.plans import find, kind_of
from attentropy.core.errors import ArgumentError, AttentropyError, UnsupportedError
from attentropy.core.resolve import Options
from attentropy.kernels.fused import library

pytestmark = pytest.mark.skipif(library.serving is None, reason="no fused kernel for this CPU")


@pytest.fixture(autouse=True)
def no_plans(monkeypatch):
    monkeypatch.setattr(plans, "_PLANS", {})


def make(**given):
    return [torch.randn(1, 2, 9, 8, **given) for _ in range(3)]


VALUES = {
    "nothing": {},
    "causal": {"mask": at.causal},
    "window": {"mask": at.causal & at.lookback(3)},
    "strided": {"mask": at.strided(2)},
    "number": {"scale": 0.5},
    "rule": {"scale": at.LogLength(2.0)},
    "softcap": {"softcap": 3.0},
    "parts": {"score": at.Dot(), "weights": at.Softmax()},
    "entropy": {"stats": "entropy"},
}


@pytest.mark.parametrize("name", VALUES)
def test_the_second_call_is_planned_and_answers_as_the_first(name, monkeypatch):
    q, k, v = make()
    first = at.attend(q, k, v, **VALUES[name])
    monkeypatch.setattr("attentropy.attention.attend.resolve", None)
    second = at.attend(q, k, v, **VALUES[name])
    assert torch.equal(first.out, second.out)
    assert torch.equal(first.stats.entropy, second.stats.entropy)
    assert torch.equal(first.stats.visible, second.stats.visible)


def test_a_mask_that_is_made_again_is_the_same_kind():
    kinds = {kind_of(*make(), Options(mask=at.causal & at.lookback(n)), "auto") for n in (3, 3, 4)}
    assert len(kinds) == 2


ids = torch.zeros(1, 9, dtype=torch.int64)
OTHERS = {
    "a mask that holds a tensor": {"mask": at.documents(ids) & at.causal},
    "padding": {"mask": at.padding(torch.tensor([4]))},
    "a table": {"mask": torch.ones(9, 9, dtype=torch.bool)},
    "a function": {"mask": lambda b, h, q, k: k <= q},
    "a scale that is a tensor": {"scale": torch.ones(2)},
    "a scale of one's own": {"scale": lambda width, visible: 1.0},
    "dropout": {"dropout": 0.1},
    "a bias": {"bias": torch.zeros(9, 9)},
    "a sink": {"sink": torch.zeros(2)},
    "another score": {"score": at.Cosine()},
    "other weights": {"weights": at.Linear()},
    "names": {"stats": {"entropy"}},
}


@pytest.mark.parametrize("name", OTHERS)
def test_calls_that_are_resolved_each_time(name):
    assert kind_of(*make(), Options(**OTHERS[name]), "auto") is None


def test_kinds_that_no_plan_serves_are_remembered():
    q, k, v = make(dtype=torch.float64)
    at.attend(q, k, v)
    assert list(plans._PLANS.values()) == [None]
    assert at.attend(q, k, v).stats.entropy.dtype == torch.float64


def test_the_number_of_plans_is_bounded(monkeypatch):
    monkeypatch.setattr(plans, "_MOST", 3)
    for n in range(1, 9):
        at.attend(*[torch.randn(1, 1, n, 4) for _ in range(3)])
        assert len(plans._PLANS) <= 3


def test_bad_arguments_are_refused_after_good_ones():
    q, k, v = make()
    at.attend(q, k, v, scale=1.0, dropout=0.0)
    for bad in ({"scale": True}, {"dropout": False}, {"softcap": 0.0}, {"stats": "some"}):
        with pytest.raises(AttentropyError, match=next(iter(bad))):
            at.attend(q, k, v, **({"scale": 1.0} | bad))
    with pytest.raises(ArgumentError, match="kernel"):
        at.attend(q, k, v, kernel="none")
    with pytest.raises(UnsupportedError, match="triton|linear"):
        at.attend(q, k, v, kernel="linear")


def test_tensors_that_are_not_plain_memory_are_resolved():
    q, k, v = make()
    at.attend(q, k, v)
    negative = torch._neg_view(q)  # as the imaginary part of a conjugate is
    assert torch.equal(at.attend(negative, k, v).out, at.attend(-q, k, v).out)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert kind_of(q, k, v, Options(), "auto") is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert at.attend(q, k, v).out.dtype == torch.bfloat16
    with pytest.raises(UnsupportedError, match="vmap"):
        torch.vmap(lambda x: at.attend(x, k, v).out)(torch.stack([q, q]))
    assert at.attend(q.to("meta"), k.to("meta"), v.to("meta")).out.is_meta


@pytest.mark.parametrize("first", [True, False])
def test_inference_mode_before_and_after(first):
    q, k, v = make()
    with torch.inference_mode(first):
        want = at.attend(q, k, v, mask=at.causal)
    with torch.inference_mode(not first):
        got = at.attend(q, k, v, mask=at.causal)
        assert torch.equal(got.stats.entropy, want.stats.entropy)
    leaf = q.requires_grad_()
    out, stats = at.attend(leaf, k, v, mask=at.causal)
    (out.sum() + stats.entropy.sum()).backward()
    assert leaf.grad.isfinite().all()


def test_what_a_caller_writes_reaches_no_other_call():
    q, k, v = make()
    for _ in range(3):
        stats = at.attend(q, k, v, mask=at.causal).stats
        assert stats.visible[0, 0].tolist() == list(range(1, 10))
        stats.visible[:, :1].fill_(77)
        stats.entropy.fill_(-1.0)


def test_threads_share_plans():
    q, k, v = make()
    want = at.attend(q, k, v).out
    wrong = []

    def work():
        wrong.extend(1 for _ in range(200) if not torch.equal(at.attend(q, k, v).out, want))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _in_child(q, k, v, want):
    assert torch.equal(at.attend(q, k, v).out, want)


def test_a_forked_child_uses_the_plans_of_its_parent():
    q, k, v = (torch.randn(1, 4, 128, 64) for _ in range(3))
    want = [at.attend(q, k, v).out for _ in range(2)][1]
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(q, k, v, want))
    child.start()
    child.join(60)
    assert child.exitcode == 0


def test_find_of_no_kind():
    assert find(None) is None
