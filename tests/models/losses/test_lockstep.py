"""Passes side by side give what passes alone give, and read weights on disk once."""

import threading

import msgspec
import pytest
import torch
from torch import nn

from attentropy.core.errors import ArgumentError
from attentropy.distributed.team import ALONE
from attentropy.models.losses import lockstep
from attentropy.models.losses.lockstep import blocks, grouped, in_step
from attentropy.models.watch import Watch

accelerate = pytest.importorskip("accelerate")


class Stack(nn.Module):
    """Layers in a list, one of them used twice, between two modules beside the list."""

    def __init__(self):
        super().__init__()
        self.first = nn.Embedding(11, 8)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(3)
        )
        self.last = nn.Linear(8, 5)
        self.order = []

    def forward(self, ids):
        x = self.first(ids)
        for i in (0, 1, 1, 2):
            x = x + self.layers[i](x)
            self.order.append((i, len(ids)))
        return self.last(x)


class Counting(dict):
    """Weights on their way into memory: how often each was asked for."""

    def __init__(self, weights):
        super().__init__(weights)
        self.asked = []

    def __getitem__(self, name):
        self.asked.append(name)
        return super().__getitem__(name)


@pytest.fixture
def away():
    """The model with its weights elsewhere, its weights, and a copy that has them."""
    torch.manual_seed(0)
    model, whole = Stack(), Stack()
    whole.load_state_dict(model.state_dict())
    weights = Counting(model.state_dict())
    model.eval()
    accelerate.hooks.attach_align_device_hook(
        model, execution_device="cpu", offload=True, weights_map=weights
    )
    return model, weights, whole


def items(*sizes):
    return [torch.arange(3 * n).view(n, 3) % 11 for n in sizes]


def test_weights_are_read_once_for_all_passes(away):
    model, weights, whole = away
    todo = items(1, 2, 3)
    with torch.no_grad():
        found = list(in_step(model)(model, todo))
        assert all(torch.equal(x, whole(ids)) for x, ids in zip(found, todo, strict=True))
    assert sorted(weights.asked) == sorted(weights)
    assert model.order == [
        (i, n) for i in (0, 1, 2) for n in (1, 2, 3) for _ in range(1 + (i == 1))
    ]
    assert {p.device.type for p in model.parameters()} == {"meta"}
    weights.asked.clear()
    with torch.no_grad():
        for ids in todo:
            model(ids)
    assert len(weights.asked) == 3 * (len(weights) + 4)


def test_what_is_read_at_a_time(away):
    model, _, whole = away
    found = [block.module for block in blocks(model)]
    assert found == [model.first, *model.layers, model.last]
    assert blocks(whole) == []
    assert [len(block.parts) for block in blocks(model)] == [1, 2, 2, 2, 1]


def test_in_memory_items_come_in_turn(away):
    assert in_step(away[2]) is ALONE.map.__kwdefaults__["run"]


def test_groups_have_room(away, monkeypatch):
    model, weights, _ = away
    assert list(grouped([1, 2], [5, 5], 4)) == [[1], [2]]
    assert list(grouped([], [], 4)) == []
    monkeypatch.setattr(lockstep, "ROOM", lockstep.WIDTH * 4 * 9)
    with torch.no_grad():
        found = list(in_step(model, tokens=torch.Tensor.numel)(model, items(1, 2, 3)))
    assert [len(x) for x in found] == [1, 2, 3]
    assert len(weights.asked) == 2 * len(weights)  # 9 tokens, and 9 tokens


def test_passes_need_not_be_alike(away):
    """One pass reads twice as often as the others, and one asks for gradients of its inputs."""
    model, weights, whole = away

    def work(times):
        return sum(model(ids).sum() for ids in items(*range(1, times + 1)))

    with torch.no_grad():
        found = list(in_step(model)(work, [2, 1, 1]))
        want = [sum(whole(ids).sum() for ids in items(*range(1, n + 1))) for n in (2, 1, 1)]
    assert found == want
    assert len(weights.asked) == 2 * len(weights)


@pytest.mark.parametrize("error", [ArgumentError("x", "y", "z"), KeyboardInterrupt()])
def test_the_first_failure_is_raised_and_nothing_stays(away, error):
    model, weights, _ = away
    before = threading.active_count()

    def work(ids):
        out = model(ids)
        if len(ids) == 2:
            raise error
        return out

    given = []
    with torch.no_grad(), pytest.raises(type(error)):
        given.extend(len(x) for x in in_step(model)(work, items(1, 2, 3)))
    assert threading.active_count() == before
    assert all(hook.offload for block in blocks(model) for _, hook in block.parts)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert not any(m._forward_pre_hooks for m in model.modules())


def test_an_interrupt_of_the_starter_ends_all(away, monkeypatch):
    model = away[0]
    before = threading.active_count()

    def interrupted(self, block):
        plain(self, block)
        if block is not None and block.module is model.layers[1]:
            raise KeyboardInterrupt

    plain = lockstep._Walk._hold
    monkeypatch.setattr(lockstep._Walk, "_hold", interrupted)
    with torch.no_grad(), pytest.raises(KeyboardInterrupt):
        list(in_step(model)(model, items(1, 2)))
    assert threading.active_count() == before
    assert {p.device.type for p in model.parameters()} == {"meta"}


def test_settings_of_the_starter_hold(away):
    model = away[0]
    seen = []

    def work(ids):
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        return model(ids)

    with torch.inference_mode():
        list(in_step(model)(work, items(1, 1)))
    with torch.no_grad():
        list(in_step(model)(work, items(1)))
    assert seen == [(False, True)] * 2 + [(False, False)]


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return x + nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def test_a_watch_tells_passes_apart():
    """Each pass finds its own rows, whichever runs in between."""
    torch.manual_seed(0)
    model = nn.Sequential(Attending(), Attending()).double()
    plain = nn.Sequential(Attending(), Attending()).double()
    plain.load_state_dict(model.state_dict())
    accelerate.hooks.attach_align_device_hook(
        model, execution_device="cpu", offload=True, weights_map=dict(model.state_dict())
    )
    todo = [torch.randn(2, n, 8).double() for n in (3, 5, 4)]

    def rows_of(one, watch):
        def work(x):
            one(x)
            found = [msgspec.structs.astuple(row) for row in watch.heads()]
            watch.clear()
            return found

        return work

    with torch.no_grad():
        w = Watch(plain).start()
        want = [rows_of(plain, w)(x) for x in todo]
        w.stop()
        w = Watch(model).start()
        got = list(in_step(model)(rows_of(model, w), todo))
        w.stop()
    assert w.places() == []
    assert len(blocks(model)) == 2
    for mine, theirs in zip(got, want, strict=True):
        assert [texts(row) for row in mine] == [texts(row) for row in theirs]
        # the model's own products may differ in their last bit, by where its weights lie
        for row, other in zip(mine, theirs, strict=True):
            assert numbers(row) == pytest.approx(numbers(other), rel=1e-12, nan_ok=True)


def texts(row):
    return [value for value in row if not isinstance(value, float)]


def numbers(row):
    return [value for value in row if isinstance(value, float)]
