"""A call over keys that come block by block, in one process: runs of rows, parts, gradients.

Several processes are in tests/attention/test_ring.py.
"""

import pytest
import torch

import attentropy as at
from attentropy.attention.attend import run
from attentropy.core.resolve import Options, Share, resolve
from attentropy.distributed.groups import peers
from attentropy.distributed.journey import attend, journey
from attentropy.distributed.transport import RingRoute

LENGTH = 13


def travelling(layout=at.zigzag, kernel="streaming", dtype=torch.float64, **given):
    q, k, v = (torch.randn(1, 2, LENGTH, 4, dtype=dtype, requires_grad=True) for _ in range(3))
    rows = layout.runs(LENGTH, ranks=1, rank=0)
    share = Share(LENGTH, LENGTH, rows)
    call = resolve(q, k, v, Options(**given), share=share)
    route = RingRoute(peers(), layout, LENGTH)
    return journey(call, rows, shift=0, route=route, kernel=lambda c: run(c, kernel)), (q, k, v)


def parts(way):
    own = way.route.layout.runs(LENGTH, ranks=1, rank=0)
    return list(way.parts(own, way.call.k, way.call.v))


def test_runs_of_rows_against_runs_of_keys():
    way, _ = travelling()
    assert [x.count for x in way.runs] == [6, 7]
    assert [(x.index, x.keys) for x in parts(way)] == [
        (0, range(0, 6)), (1, range(0, 6)), (0, range(6, 13)), (1, range(6, 13))
    ]  # fmt: skip


def test_parts_that_hide_everything_are_left_out():
    way, _ = travelling(mask=at.causal)
    assert [(x.index, x.keys) for x in parts(way)] == [
        (0, range(0, 6)), (1, range(0, 6)), (1, range(6, 13))
    ]  # fmt: skip
    far, _ = travelling(mask=lambda b, h, q, k: k < 3)
    assert {x.keys for x in parts(far)} == {range(0, 6)}


@pytest.mark.parametrize(
    "weights", [at.Softmax(), at.L1(), at.ReluSquared(), at.Kernelised()], ids=str
)
def test_rows_and_gradients_are_those_of_one_call(weights):
    torch.manual_seed(1)
    way, inputs = travelling(weights=weights, mask=at.causal)
    rows = attend(way)
    want = at.attend(*inputs, weights=weights, mask=at.causal, kernel="reference")
    torch.testing.assert_close(rows.out, want.out)
    torch.testing.assert_close(rows.collision, want.stats.collision)

    def gradients(out, collision):
        loss = out.sin().sum() + collision.sum()
        return torch.autograd.grad(loss, inputs)

    got = gradients(rows.out, rows.collision)
    for a, b in zip(got, gradients(want.out, want.stats.collision), strict=True):
        torch.testing.assert_close(a, b)


def test_double_backward_is_refused():
    way, (q, _, _) = travelling()
    (g,) = torch.autograd.grad(attend(way).out.sum(), q, create_graph=True)
    with pytest.raises(at.UnsupportedError, match="double backward is not supported by the ring"):
        g.sum().backward()


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
@pytest.mark.parametrize("kernel", ["reference", "streaming", "auto"])
def test_a_common_shift_of_float32_logits_costs_nothing(shift, kernel):
    torch.manual_seed(2)
    s = torch.randint(-4096, 4096, (LENGTH, LENGTH)).float() / 1024
    q = torch.zeros(1, 1, LENGTH, 4)
    got = at.ring_attend(q, q, q, bias=s + shift, layout=at.zigzag, method="ring", kernel=kernel)
    wide = q.double()
    want = at.attend(wide, wide, wide, bias=s.double(), kernel="reference").stats
    assert (got.stats.entropy - want.entropy).abs().max() < 2e-6
    assert (got.stats.collision - want.collision).abs().max() < 1e-6
    assert torch.equal(got.stats.argmax, want.argmax)


def test_keys_whose_logits_are_all_minus_infinity_weigh_nothing():
    q, k, v = torch.ones(1, 1, 4, 2), torch.randn(1, 1, 8, 2), torch.randn(1, 1, 8, 3)
    k[:, :, :4] = -torch.inf
    given = {"kernel": "reference"}
    got = at.ring_attend(q, k, v, layout=at.zigzag, method="ring", **given)
    want = at.attend(q, k, v, **given)
    torch.testing.assert_close(got.out, want.out)
    torch.testing.assert_close(got.stats.entropy, want.stats.entropy)
    assert torch.equal(got.stats.argmax, want.stats.argmax)
