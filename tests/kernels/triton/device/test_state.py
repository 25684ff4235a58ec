"""The row state in Triton against that of attentropy.core.states."""

import pytest
import torch
import triton
import triton.language as tl

from attentropy.core import states
from attentropy.kernels.triton.device.logits import LOG2E
from attentropy.kernels.triton.device.state import (
    OCTET,
    SLOTS,
    absorb,
    absorb_safely,
    blind,
    empty,
    halves,
    loudest,
    merge,
    read,
    settle,
)
from attentropy.kernels.triton.device.views import Partial
from attentropy.kernels.triton.launch import quiet_numpy
from tests.kernels.triton.device.helpers import interpreted, outputs

INF = float("inf")


@triton.jit
def take(s_ptr, into, ROWS: tl.constexpr, TILES: tl.constexpr, WIDTH: tl.constexpr):
    """States of rows whose logits come in tiles of half the size; -inf is a hidden key.

    `top` is the first key that the slot of the maximum may hold.
    """
    r, n = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    slots = empty(ROWS, 15)
    size = tl.full((ROWS,), 2.0, tl.float32)
    unit = (size * LOG2E)[:, None]
    for tile in range(0, TILES):
        j = tile * WIDTH + n[None, :]
        s = tl.load(s_ptr + r[:, None] * (TILES * WIDTH) + j) / 2
        seen = s > float("-inf")
        _, _, slots = absorb(slots, s, seen, tile * WIDTH, unit, 15, True)
    (m, l, t, u, c), _ = settle(slots, size, unit)
    held_by = (slots[5] == slots[0][:, None]) & (slots[6] >= 0)
    first = tl.where(held_by, slots[6] + OCTET // SLOTS * tl.arange(0, SLOTS)[None, :], 2147483647)
    top = tl.min(first, 1)
    store(into, (m, l, t, u, c, tl.where(top < 2147483647, top, -1)), r)


@triton.jit
def take_safely(s_ptr, into, ROWS: tl.constexpr, TILES: tl.constexpr, WIDTH: tl.constexpr):
    r, n = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    state = blind(ROWS)
    for tile in range(0, TILES):
        j = tile * WIDTH + n[None, :]
        s = tl.load(s_ptr + r[:, None] * (TILES * WIDTH) + j)
        _, _, state = absorb_safely(state, s, s > float("-inf"), j)
    store(into, state, r)


@triton.jit
def cut(x_ptr, one_ptr, two_ptr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    r = tl.arange(0, ROWS)[:, None]
    one, two = halves(tl.load(x_ptr + r * WIDTH + tl.arange(0, WIDTH)[None, :]))
    at = r * (WIDTH // 2) + tl.arange(0, WIDTH // 2)[None, :]
    tl.store(one_ptr + at, one)
    tl.store(two_ptr + at, two)


@triton.jit
def joined(one, two, into, ROWS: tl.constexpr):
    r = tl.arange(0, ROWS)
    state, _, _ = merge(held(one, r), held(two, r))
    store(into, state, r)


@triton.jit
def held(at, r):
    return (
        tl.load(at.m + r), tl.load(at.l + r), tl.load(at.t + r), tl.load(at.u + r),
        tl.load(at.c + r), tl.load(at.top + r),
    )  # fmt: skip


@triton.jit
def store(into, state, r):
    tl.store(into.m + r, state[0])
    tl.store(into.l + r, state[1])
    tl.store(into.t + r, state[2])
    tl.store(into.u + r, state[3])
    tl.store(into.c + r, state[4])
    tl.store(into.top + r, state[5])


@triton.jit
def told(at, inverse, log_l, lse, entropy, spread, collision, lost, top, ROWS: tl.constexpr):
    r = tl.arange(0, ROWS)
    state = held(at, r)
    a, b, c, d, e, f, g = read(state)
    tl.store(inverse + r, a)
    tl.store(log_l + r, b)
    tl.store(lse + r, c)
    tl.store(entropy + r, d)
    tl.store(spread + r, e)
    tl.store(collision + r, f)
    tl.store(lost + r, g.to(tl.float32))
    tl.store(top + r, loudest(state))


def room(rows):
    m, l, t, u, c = outputs(5, rows)
    return Partial(m, l, t, u, c, torch.zeros(rows, dtype=torch.int32), torch.empty(0))


def taken(s, *, tiles=1, how=take_safely):
    into = room(len(s))
    with quiet_numpy():
        how[(1,)](s, into, len(s), tiles, s.shape[1] // tiles)
    return into


def want_entropy(p):
    return -torch.special.xlogy(p, p).sum(-1)


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
    z = (s.double() - want.m[:, None]).nan_to_num(nan=0.0, neginf=0.0)
    u = (z.square() * z.exp()).masked_fill(s.isneginf(), 0.0).sum(-1)
    torch.testing.assert_close(got.m, want.m.float())
    for name, value in (("l", want.l), ("t", want.t), ("u", u), ("c", want.c)):
        torch.testing.assert_close(getattr(got, name), value.float(), atol=2e-3, rtol=1e-3)
    return want


@interpreted
@pytest.mark.parametrize("tiles", [1, 2])
def test_tiles_are_absorbed(tiles):
    s = logits()
    found = taken(s, tiles=tiles)
    want = check(found, s)
    assert torch.equal(found.top.long(), want.argmax)


@interpreted
@pytest.mark.parametrize("tiles", [1, 2, 4])
def test_slots_make_the_same_state_and_know_where_the_largest_is(tiles):
    s = logits()
    found = taken(s, tiles=tiles, how=take)
    want = check(found, s)
    blind_row = want.argmax < 0
    assert torch.equal(found.top < 0, blind_row)
    width = 32 // tiles
    same_slot, same_tile = (
        want.argmax % 8 // 2 == found.top % 8 // 2,
        want.argmax // width == found.top // width,
    )
    assert ((same_slot & same_tile) | blind_row).all()


@interpreted
def test_columns_are_cut_in_two_and_octets_in_even_and_odd_ones():
    x = torch.randn(8, 32)
    one, two = torch.empty(2, 8, 16)
    cut[(1,)](x, one, two, 8, 32)
    assert torch.equal(torch.cat([one, two], 1), x)
    x, one, two = x[:, :8].contiguous(), torch.empty(8, 4), torch.empty(8, 4)
    cut[(1,)](x, one, two, 8, 8)
    assert torch.equal(torch.stack([one, two], 2).flatten(1), x)


@interpreted
def test_states_merge_and_the_first_of_ties_stays():
    s = logits()
    parts = [taken(x.contiguous()) for x in s.split(16, 1)]
    parts[1] = parts[1]._replace(top=torch.where(parts[1].top < 0, -1, parts[1].top + 16))
    into = room(8)
    with quiet_numpy():
        joined[(1,)](*parts, into, 8)
    want = check(into, s)
    assert torch.equal(into.top.long(), want.argmax)


@interpreted
def test_a_state_is_read_as_the_contract_says():
    s = logits()
    at = taken(s)
    inverse, log_l, lse, entropy, spread, collision, lost, top = outputs(8, 8)
    with quiet_numpy():
        told[(1,)](at, inverse, log_l, lse, entropy, spread, collision, lost, top, 8)
    log_p = s.double().log_softmax(-1)
    p = log_p.exp().nan_to_num(0.0)
    centred = (log_p + want_entropy(p)[:, None]).nan_to_num(neginf=0.0)
    torch.testing.assert_close(spread, (p * centred.square()).sum(-1).float(), atol=2e-3, rtol=1e-3)
    want = states.read(states.from_tile(s.double(), torch.ones(32, 1).double())).stats
    torch.testing.assert_close(lse, want.lse.float())
    torch.testing.assert_close(entropy, want.entropy.float(), atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(collision, want.collision.float(), atol=1e-4, rtol=1e-3)
    assert torch.equal(top, want.max_logit.float())
    assert (inverse[2], log_l[2], entropy[2], lse[2].item()) == (0, 0, 0, -INF)


@interpreted
def test_rows_whose_varentropy_is_a_small_difference_are_told():
    s = torch.zeros(8, 64)
    s[0] = torch.linspace(0, 1, 64)
    s[1, 3] = 1e-3  # the maximum is far from the rest as they lie
    s[2, 3] = 80.0
    s[3] = -INF
    *_, lost, _ = found = outputs(8, 8)
    with quiet_numpy():
        told[(1,)](taken(s), *found, 8)
    assert lost.tolist() == [0, 1, 0, 0, 0, 0, 0, 0]


@interpreted
@pytest.mark.parametrize("offset", [0.0, 37.0, 1e4])
def test_a_rounded_pivot_costs_no_digits_and_a_lone_key_is_exact(offset):
    s = torch.full((8, 32), -INF)
    s[0, 7] = offset + 0.3
    s[1], s[1, 3] = offset - 20, offset + 0.3
    s[2] = offset + torch.randn(32) * 4
    s[3] = offset + 0.7
    found = taken(s, tiles=4, how=take)
    assert (found.l[0], found.t[0], found.u[0], found.c[0]) == (1, 0, 0, 1)
    z = s.double() - s.double().amax(-1, keepdim=True)
    p = z.exp()
    z = z.clamp(min=-1e3)
    for name, want in {"l": p, "t": p * z, "u": p * z * z, "c": p * p}.items():
        got = getattr(found, name)[:4]
        torch.testing.assert_close(got, want.sum(-1)[:4].float(), rtol=3e-6, atol=1e-9, msg=name)
