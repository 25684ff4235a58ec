"""How keys and values reach the ranks, and how gradients come home; two processes and one."""

import pytest
import torch

import attentropy as at
from attentropy.distributed.groups import peers
from attentropy.distributed.transport import GatherRoute, RingRoute, metered
from tests.processes import spawn

LENGTH = 11
ROUTES = [RingRoute, GatherRoute]


def whole():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 1, 2, LENGTH, 3, generator=generator).unbind(0)


def held(layout, me):
    return [layout.take(x, dim=2, ranks=me.size, rank=me.rank) for x in whole()]


def check(route_type, layout):
    me = peers()
    route, (k, v) = route_type(me, layout, LENGTH), held(layout, me)
    seen = []

    def visit(blocks, k, v):
        first = 0
        for run in blocks:
            part = slice(first, first + len(run))
            for x, all_of_it in zip((k, v), whole(), strict=True):
                assert torch.equal(x[:, :, part], all_of_it[:, :, run.start : run.stop])
            seen.extend(run)
            first = part.stop

    route.carry(k, v, visit)
    assert sorted(seen) == list(range(LENGTH))

    def back(blocks, k, v):
        """Every rank sends each key its own index plus one."""
        return torch.full_like(k, float(me.rank + 1)), 10 * v

    d_k, d_v = route.carry_back(k, v, back)
    torch.testing.assert_close(d_k, torch.full_like(k, sum(range(1, me.size + 1))))
    torch.testing.assert_close(d_v, 10 * me.size * v)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("layout", [at.contiguous, at.zigzag], ids=lambda x: x.name)
def test_alone(route, layout):
    check(route, layout)


def everything(rank):
    for route in ROUTES:
        for layout in (at.contiguous, at.zigzag):
            check(route, layout)
    return "same"


@pytest.mark.parametrize("ranks", [2, 3])
def test_several_processes(ranks):
    assert spawn(everything, ranks) == ["same"] * ranks


def test_meters_count_while_they_are_open():
    me = peers()
    with metered() as outer, metered() as inner:
        RingRoute(me, at.contiguous, LENGTH).carry(*held(at.contiguous, me), lambda *block: None)
    assert outer.sent == inner.sent == 0
