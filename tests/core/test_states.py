import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attentropy as at
from attentropy.core.states import blind, from_tile, merge, read, with_sink

LOGITS = st.lists(st.one_of(st.floats(-60, 60), st.just(-math.inf)), min_size=1, max_size=12)


def state(logits, *, first=0):
    s = torch.tensor([logits], dtype=torch.float64)
    v = torch.arange(first, first + len(logits), dtype=torch.float64)[:, None].cos()
    return from_tile(s, v, first=first)


def assert_same(a, b):
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, atol=1e-12, rtol=1e-12)


@given(LOGITS, LOGITS, LOGITS)
def test_merge_is_associative(a, b, c):
    x, y, z = state(a), state(b, first=len(a)), state(c, first=len(a) + len(b))
    assert_same(merge(merge(x, y), z), merge(x, merge(y, z)))


@given(LOGITS, LOGITS)
def test_merge_is_commutative(a, b):
    x, y = state(a), state(b, first=len(a))
    assert_same(merge(x, y), merge(y, x))


@given(LOGITS)
def test_blind_is_neutral(a):
    nothing = blind((1,), 1, like=torch.zeros(1, dtype=torch.float64))
    assert_same(merge(state(a), nothing), state(a))
    assert_same(merge(nothing, state(a)), state(a))


@given(LOGITS, st.lists(st.integers(0, 12), max_size=4))
def test_any_split_gives_the_same_state(a, cuts):
    edges = [0, *sorted(min(c, len(a)) for c in cuts), len(a)]
    parts = [
        state(a[i:j], first=i) if j > i else blind((1,), 1, like=torch.zeros(1).double())
        for i, j in zip(edges, edges[1:])
    ]
    total = parts[0]
    for part in parts[1:]:
        total = merge(total, part)
    assert_same(total, state(a))


@given(LOGITS, LOGITS)
def test_nothing_is_ever_nan(a, b):
    out, stats = read(merge(state(a), state(b, first=len(a))))
    assert not out.isnan().any()
    assert not stats.entropy.isnan().any()
    assert 0 <= stats.entropy.item() <= math.log(max(1, stats.visible.item())) + 1e-12


def test_read_out_is_softmax():
    s = torch.randn(5, 9, dtype=torch.float64)
    v = torch.randn(9, 3, dtype=torch.float64)
    out, stats = read(from_tile(s, v))
    p = s.softmax(-1)
    torch.testing.assert_close(out, p @ v)
    torch.testing.assert_close(stats.entropy, -(p * p.log()).sum(-1))
    torch.testing.assert_close(stats.lse, s.logsumexp(-1))
    torch.testing.assert_close(stats.collision, p.square().sum(-1))


def test_a_shift_that_float32_represents_leaves_the_entropy():
    s = torch.randint(-4096, 4096, (64, 33)).float() / 1024
    v = torch.ones(33, 1)
    plain, shifted = (read(from_tile(x, v)).stats.entropy for x in (s, s + 1e4))
    exact = read(from_tile(s.double(), v.double())).stats.entropy
    assert torch.equal((s + 1e4) - 1e4, s)
    assert (plain - exact).abs().max() < 1e-6
    assert (shifted - exact).abs().max() < 1e-6


def test_blind_rows_read_as_the_contract_says():
    out, stats = read(state([-math.inf, -math.inf]))
    assert out.item() == 0
    assert stats.entropy.item() == 0
    assert stats.lse.item() == -math.inf
    assert stats.max_logit.item() == -math.inf
    assert stats.collision.item() == 0
    assert stats.argmax.item() == -1
    assert stats.visible.item() == 0


def test_one_hot_rows_have_exactly_no_entropy():
    s = torch.tensor([[0.0, -200.0, -1e30], [1e30, -1e30, 0.0]])
    assert read(from_tile(s, torch.ones(3, 1))).stats.entropy.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("sink", [-math.inf, -1000.0, 0.5, 1000.0])
def test_sinks_at_the_extremes(sink):
    s = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    logit = torch.tensor(sink, dtype=torch.float64, requires_grad=True)
    attended = with_sink(read(from_tile(s, torch.ones(7, 1).double())), logit)
    joined = torch.cat([s, logit.expand(4, 1)], -1).softmax(-1)
    torch.testing.assert_close(attended.out[:, 0], 1 - joined[:, -1])
    torch.testing.assert_close(attended.stats.sink_mass, joined[:, -1])
    for value in (attended.stats.entropy.sum(), attended.stats.lse.sum(), attended.out.sum()):
        (g,) = torch.autograd.grad(value, s, retain_graph=True)
        assert g.isfinite().all()


def test_a_sink_of_no_weight_beside_no_keys_is_no_outcome():
    q, k, v = (torch.randn(1, 2, 3, 4) for _ in range(3))
    hidden, sink = torch.zeros(3, 3, dtype=torch.bool), torch.full((2,), -torch.inf)
    out, stats = at.attend(q, k, v, mask=hidden, sink=sink)
    for zero in (out, stats.sink_mass, stats.collision, stats.entropy):
        assert not zero.any()
    assert stats.lse.isneginf().all()
