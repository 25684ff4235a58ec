"""Totals of several processes are those of one."""

import time

import pytest
import torch

import attentropy as at
from attentropy.distributed.reduce import Reducer, Totals, merge
from tests.processes import spawn


def some(rank, *, names=("a", "b")):
    generator = torch.Generator().manual_seed(rank)
    draws = {n: torch.randn(3, 2, generator=generator, dtype=torch.float64) for n in names}
    return Totals(draws, {n: x[0] for n, x in draws.items()})


def assert_same(got, want):
    assert got.sums.keys() == want.sums.keys()
    assert got.maxima.keys() == want.maxima.keys()
    for kind in ("sums", "maxima"):
        for name, x in getattr(want, kind).items():
            torch.testing.assert_close(getattr(got, kind)[name], x, atol=0, rtol=1e-15)


def test_merge_is_exact_and_nothing_is_its_identity():
    one, two = some(0), some(1, names=("b", "c"))
    joined = merge([one, Totals(), two])
    torch.testing.assert_close(joined.sums["b"], one.sums["b"] + two.sums["b"], atol=0, rtol=0)
    torch.testing.assert_close(joined.sums["a"], one.sums["a"])
    assert torch.equal(joined.maxima["b"], torch.maximum(one.maxima["b"], two.maxima["b"]))
    assert_same(merge([one]), one)
    assert merge([]).shapes() == {}


def test_alone():
    assert_same(Reducer().start(some(3)).result(), some(3))


def reduced(rank):
    ranks = 2
    reducer = Reducer()
    everyone = [some(r) for r in range(ranks)]
    assert_same(reducer.start(some(rank)).result(), merge(everyone))
    # two on their way at once, read in their order
    first, second = reducer.start(some(rank)), reducer.start(Totals())
    assert_same(first.result(), merge(everyone))
    assert second.result().shapes() == {}
    # a rank that recorded nothing, and a name that one rank meets first
    mine = some(rank, names=("a", "late")) if rank == 1 else Totals()
    assert_same(reducer.start(mine).result(), some(1, names=("a", "late")))
    # both on their way when the new name appears
    pair = [reducer.start(some(rank, names=("x",))), reducer.start(some(rank, names=("y",)))]
    for name, pending in zip("xy", pair, strict=True):
        want = merge([some(r, names=(name,)) for r in range(ranks)])
        assert_same(pending.result(), want)
    # heads spread over ranks stand side by side
    joined = reducer.start(some(rank)).joined()
    assert torch.equal(joined.sums["a"], torch.cat([x.sums["a"] for x in everyone], 1))
    with pytest.raises(at.DistributedError, match=r"statistics: z has shape \[2\] on one rank"):
        Reducer().start(Totals({"z": torch.zeros(1 + rank)})).result()
    return heads(rank)


def heads(rank):
    """Statistics per head of a sequence that ranks share, and of one whose rows one rank holds."""
    q, k, v = torch.randn(3, 2, 4, 21, 8, generator=torch.Generator().manual_seed(0)).double()
    want = at.attend(q, k, v, mask=at.causal, sink=torch.zeros(4)).stats.per_head()
    parts = [at.zigzag.shard(x, dim=2) for x in (q, k, v)]
    _, stats = at.ring_attend(*parts, mask=at.causal, layout=at.zigzag, sink=torch.zeros(4))
    got = at.reduce_heads(stats)
    assert got.keys() == want.keys()
    for name in want:
        torch.testing.assert_close(got[name], want[name])
    _, alone = at.attend(q[:, :, : 21 * rank], k, v)
    torch.testing.assert_close(
        at.reduce_heads(alone).entropy, at.attend(q, k, v).stats.per_head().entropy
    )
    return "same"


def stalled(rank):
    reducer = Reducer()
    reducer.start(some(rank)).result()
    if rank == 1:
        time.sleep(60)
    pending, start = reducer.start(some(rank)), time.monotonic()
    try:
        pending.result()
    except at.DistributedError as error:
        return time.monotonic() - start, str(error)
    return None


def test_two_processes():
    assert spawn(reduced, 2) == ["same", "same"]


def test_a_rank_that_stalls():
    took, message = spawn(stalled, 2, timeout=5.0, of=[0])[0]
    assert took < 10
    assert message.startswith("statistics: another rank of the group failed, left or did not")
