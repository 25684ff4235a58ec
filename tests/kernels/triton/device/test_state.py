"""The row state in Triton against that of attentropy.core.states."""

import pytest
import torch
import triton
import triton.language as tl

from attentropy.core import states
from attentropy.kernels.triton.device.state import absorb, empty, loudest, merge, read
from attentropy.kernels.triton.device.views import Partial
from attentropy.kernels.triton.launch import quiet_numpy
from tests.kernels.triton.device.helpers import interpreted, outputs

INF = float("inf")


@triton.jit
def take(s_ptr, into, ROWS: tl.constexpr, TILES: tl.constexpr, WIDTH: tl.constexpr):
    """States of rows whose logits come in tiles; -inf is a hidden key."""
    r, n = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    state = empty(ROWS)
    for tile in range(0, TILES):
        j = tile * WIDTH + n[None, :]
        s = tl.load(s_ptr + r[:, None] * (TILES * WIDTH) + j)
        _, _, state = absorb(state, s, s > float("-inf"), j, True, True, False)
    store(into, state, r)


@triton.jit
def joined(one, two, into, ROWS: tl.constexpr):
    r = tl.arange(0, ROWS)
    state, _, _ = merge(held(one, r), held(two, r))
    store(into, state, r)


@triton.jit
def held(at, r):
    return (
        tl.load(at.m + r), tl.load(at.l + r), tl.load(at.t + r), tl.load(at.c + r),
        tl.load(at.top + r),
    )  # fmt: skip


@triton.jit
def store(into, state, r):
    tl.store(into.m + r, state[0])
    tl.store(into.l + r, state[1])
    tl.store(into.t + r, state[2])
    tl.store(into.c + r, state[3])
    tl.store(into.top + r, state[4])


@triton.jit
def told(at, inverse, log_l, lse, entropy, collision, top, ROWS: tl.constexpr):
    r = tl.arange(0, ROWS)
    state = held(at, r)
    a, b, c, d, e = read(state)
    tl.store(inverse + r, a)
    tl.store(log_l + r, b)
    tl.store(lse + r, c)
    tl.store(entropy + r, d)
    tl.store(collision + r, e)
    tl.store(top + r, loudest(state))


def room(rows):
    m, l, t, c = outputs(4, rows)
    return Partial(m, l, t, c, torch.zeros(rows, dtype=torch.int32), torch.empty(0))


def taken(s, *, tiles=1):
    into = room(len(s))
    take[(1,)](s, into, len(s), tiles, s.shape[1] // tiles)
    return into


def logits():
    s = torch.randn(8, 32) * 4
    s[1, 5:] = -INF
    s[2] = -INF
    s[3] = 7.0
    s[4, :16] = -INF
    s[5] += 1e4
    return s


def check(got, s):
    want = states.from_tile(s.double(), torch.ones(s.shape[1], 1).double())
    torch.testing.assert_close(got.m, want.m.float())
    for name, value in (("l", want.l), ("t", want.t), ("c", want.c)):
        torch.testing.assert_close(getattr(got, name), value.float(), atol=2e-3, rtol=1e-3)
    assert torch.equal(got.top.long(), want.argmax)


@interpreted
@pytest.mark.parametrize("tiles", [1, 2])
def test_tiles_are_absorbed(tiles):
    s = logits()
    check(taken(s, tiles=tiles), s)


@interpreted
def test_states_merge_and_the_first_of_ties_stays():
    s = logits()
    halves = [taken(x.contiguous()) for x in s.split(16, 1)]
    halves[1] = halves[1]._replace(top=torch.where(halves[1].top < 0, -1, halves[1].top + 16))
    into = room(8)
    joined[(1,)](*halves, into, 8)
    check(into, s)


@interpreted
def test_a_state_is_read_as_the_contract_says():
    s = logits()
    at = taken(s)
    inverse, log_l, lse, entropy, collision, top = outputs(6, 8)
    with quiet_numpy():
        told[(1,)](at, inverse, log_l, lse, entropy, collision, top, 8)
    want = states.read(states.from_tile(s.double(), torch.ones(32, 1).double())).stats
    torch.testing.assert_close(lse, want.lse.float())
    torch.testing.assert_close(entropy, want.entropy.float(), atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(collision, want.collision.float(), atol=1e-4, rtol=1e-3)
    assert torch.equal(top, want.max_logit.float())
    assert (inverse[2], log_l[2], entropy[2], lse[2].item()) == (0, 0, 0, -INF)
