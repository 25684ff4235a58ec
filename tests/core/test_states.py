"""Row states merge exactly: as a monoid, with gradients, at every edge of floating point."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attentropy as at
from attentropy.core.results import Stats
from attentropy.core.states import (
    blind,
    from_tile,
    merge,
    read,
    repeated,
    rescaled,
    strongest,
    unread,
    with_sink,
)

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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_sink_has_the_gradient_of_the_outputs_as_they_are(dtype):
    s, v = torch.randn(50, 7), torch.randn(7, 16)
    out, stats = read(from_tile(s, v))
    out, d_out = out.to(dtype), torch.randn(50, 16).to(dtype)
    logit = torch.tensor(0.3, requires_grad=True)
    got = with_sink(at.Attended(out, stats), logit).out
    mass = torch.sigmoid(0.3 - s.double().logsumexp(-1))
    want = (1 - mass)[:, None] * out.double()
    assert got.dtype == dtype
    torch.testing.assert_close(got, want.to(dtype))
    (d_sink,) = torch.autograd.grad(got, logit, d_out)
    want = -(mass * (1 - mass) * (d_out.double() * out.double()).sum(-1)).sum()
    torch.testing.assert_close(d_sink.double(), want, rtol=1e-5, atol=1e-6)


def test_a_sink_of_no_weight_beside_no_keys_is_no_outcome():
    q, k, v = (torch.randn(1, 2, 3, 4) for _ in range(3))
    hidden, sink = torch.zeros(3, 3, dtype=torch.bool), torch.full((2,), -torch.inf)
    out, stats = at.attend(q, k, v, mask=hidden, sink=sink)
    for zero in (out, stats.sink_mass, stats.collision, stats.entropy):
        assert not zero.any()
    assert stats.lse.isneginf().all()


@pytest.mark.parametrize("parts", [1, 2, 7, 300])
def test_merged_states_keep_the_digits_of_rows_that_are_nearly_one_hot_or_nearly_flat(parts):
    s = torch.randn(30, 600) * 1e-2
    s[:, 400] += torch.linspace(0, 60, 30)
    v = torch.ones(600, 1)
    total = blind((30,), 1, like=v)
    for columns in torch.arange(600).chunk(parts):
        total = merge(total, from_tile(s[:, columns], v[columns], first=int(columns[0])))
    stats = read(total).stats
    exact = s.double() - s[:, 400:401].double()
    e = exact.exp()
    rest = e[:, :400].sum(-1) + e[:, 401:].sum(-1)
    mean = (e * exact).sum(-1) / (1 + rest)
    spread = (e * (exact - mean[:, None]).square()).sum(-1) / (1 + rest)
    torch.testing.assert_close(stats.entropy.double(), rest.log1p() - mean, atol=0, rtol=1e-5)
    torch.testing.assert_close(stats.varentropy.double(), spread, atol=0, rtol=1e-5)


def dense(logits, values, sink=None):
    """Output, entropy, lse, sum p^2 by the textbook, in float64; -inf hides a key."""
    s = logits.double()
    if sink is not None:
        s = torch.cat([s, sink.double().expand(*s.shape[:-1], 1)], -1)
        values = torch.cat([values, torch.zeros_like(values[:1])])
    lse = s.logsumexp(-1)
    p = (s - lse[..., None]).exp()
    return (
        p @ values.double(),
        -(p * (s - lse[..., None]).masked_fill(p == 0, 0.0)).sum(-1),
        lse,
        p.square().sum(-1),
    )


def results(attended):
    stats = attended.stats
    return attended.out, stats.entropy, stats.lse, stats.collision


CUTS = [(0, 5), (1, 4), (3, 3), (5, 0)]


@pytest.mark.parametrize(("one", "two"), CUTS)
def test_merged_gradients_are_those_of_the_whole(one, two):
    s = torch.randn(4, one + two, dtype=torch.float64)
    s[1, : (one + two) // 2] = -math.inf
    v = torch.randn(one + two, 3, dtype=torch.float64)

    def loss(values):
        return sum((x * torch.linspace(-1, 2, x.numel()).view_as(x)).sum() for x in values)

    def halves(s, v):
        return from_tile(s[:, :one], v[:one]), from_tile(s[:, one:], v[one:], first=one)

    for joined in (
        lambda s, v: read(merge(*halves(s, v))),
        lambda s, v: read(merge(*(unread(read(part)) for part in halves(s, v)))),
    ):
        leaves = [x.clone().requires_grad_() for x in (s, v)]
        got = torch.autograd.grad(loss(results(joined(*leaves))), leaves)
        want = torch.autograd.grad(loss(dense(*leaves)), leaves)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(
                a, b.masked_fill(s.isneginf(), 0.0) if a.shape == s.shape else b
            )


def test_gradcheck_of_merge_and_sink():
    s = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    v = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    sink = torch.randn(3, dtype=torch.float64, requires_grad=True)

    def joined(s, v, sink):
        both = merge(from_tile(s[:, :2], v[:2]), from_tile(s[:, 2:], v[2:]))
        whole = with_sink(read(both), sink)
        return (*results(whole), whole.stats.sink_mass)

    assert torch.autograd.gradcheck(joined, (s, v, sink))


@given(LOGITS, LOGITS)
def test_unread_is_the_inverse_of_read(a, b):
    whole = merge(state(a), state(b, first=len(a)))
    assert_same(unread(read(whole)), whole)


def test_unread_counts_keys_from_the_first():
    there = state([1.0, 3.0, 2.0])
    assert unread(read(there), first=10).argmax.item() == 11
    assert unread(read(state([-math.inf])), first=10).argmax.item() == -1


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("shift", [0.0, 1e4, -1e4])
def test_parts_merge_to_millionths_in_float32_wherever_the_logits_are(shift, grad):
    s = (torch.randint(-4096, 4096, (64, 33)).float() / 1024).requires_grad_(grad)
    v = torch.randn(33, 4)
    want = dense(s, v)
    parts = []
    for columns in (slice(0, 20), slice(20, 33)):
        tile = from_tile(s[:, columns] + shift, v[columns], first=columns.start)
        parts.append(unread(read(tile), log_l=tile.l.detach().log()))
    out, entropy, lse, collision = results(read(merge(*parts)))
    if grad:
        got, exact = (torch.autograd.grad(x.sum(), s)[0] for x in (entropy, want[1]))
        assert (got - exact).abs().max() < 2e-6
    assert (entropy - want[1]).abs().max() < 2e-6
    assert (collision - want[3]).abs().max() < 1e-6
    assert (out - want[0]).abs().max() < 2e-6
    assert (lse.double() - shift - want[2]).abs().max() < (1e-6 if not shift else 1e-3)


def test_logits_of_minus_infinity_that_are_seen_weigh_nothing_beside_others():
    """A part that has no distribution of its own reads as NaN, and still merges."""
    none = from_tile(torch.full((1, 2), -math.inf), torch.ones(2, 1), visible=torch.tensor([2]))
    some = from_tile(torch.tensor([[0.5, 1.0]]), torch.tensor([[1.0], [3.0]]), first=2)
    alone = read(none)
    assert alone.out.isnan().all()
    assert alone.stats.entropy.isnan().all()
    assert alone.stats.lse.item() == -math.inf
    spoiled = unread(alone)._replace(argmax=torch.tensor([0]))
    for pair in ((spoiled, some), (some, spoiled)):
        out, stats = read(merge(*pair))
        torch.testing.assert_close(out, read(some).out)
        torch.testing.assert_close(stats.entropy, read(some).stats.entropy)
        assert stats.visible.item() == 4
        assert stats.argmax.item() == 3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_numbers_of_a_part_reach_the_whole(bad):
    for a, b in (([0.0, bad], [1.0]), ([1.0], [bad, 0.0])):
        out, stats = read(merge(state(a), state(b, first=len(a))))
        assert out.isnan().all()
        assert stats.entropy.isnan().all()
        assert stats.lse.item() == math.inf if math.isinf(bad) else stats.lse.isnan()


def test_of_ties_the_lowest_key_and_nan_before_everything():
    one, nan, low = torch.tensor([1.0]), torch.tensor([math.nan]), torch.tensor([-math.inf])

    def key(a, b):
        return int(strongest((a[0], torch.tensor([a[1]])), (b[0], torch.tensor([b[1]])))[1])

    for a, b, want in (
        ((one, 3), (one, 7), 3),
        ((one, 7), (one, 3), 3),
        ((one, 3), (one + 1, 7), 7),
        ((low, -1), (one, 7), 7),
        ((low, -1), (low, 7), 7),
        ((low, -1), (low, -1), -1),
        ((nan, 7), (one, 3), 7),
        ((nan, 7), (nan, 3), 3),
        ((nan, 3), (one + 1, 1), 3),
    ):
        assert key(a, b) == key(b, a) == want


def test_rescaling_changes_nothing_that_is_read():
    there = state([1.0, -2.0, 0.5])
    higher = rescaled(there, there.m + 3)
    assert higher.m.item() == there.m.item() + 3
    for a, b in zip(results(read(higher)), results(read(there)), strict=True):
        torch.testing.assert_close(a, b)


@given(LOGITS, st.integers(1, 5))
def test_repeated_keys(a, times):
    there = state(a)
    keys = [x for x in a for _ in range(times)]
    values = torch.arange(len(a), dtype=torch.float64)[:, None].cos().repeat_interleave(times, 0)
    want = from_tile(torch.tensor([keys], dtype=torch.float64), values)
    assert_same(repeated(there, times), want)


@pytest.mark.parametrize("sink", [-math.inf, -1000.0, -3.0, 0.5, 1000.0])
def test_a_sink_is_one_more_key_without_a_value(sink):
    s, v = torch.randn(4, 7, dtype=torch.float64), torch.randn(7, 2, dtype=torch.float64)
    logit = torch.tensor(sink, dtype=torch.float64)
    got = with_sink(read(from_tile(s, v)), logit)
    for a, b in zip(results(got), dense(s, v, logit), strict=True):
        torch.testing.assert_close(a, b)
    assert torch.equal(got.stats.max_logit, s.amax(-1))
    assert torch.equal(got.stats.visible, torch.full((4,), 7))


@pytest.mark.parametrize("shift", [1e4, -1e4])
def test_a_sink_keeps_its_digits_beside_large_logits(shift):
    s, v = torch.randint(-4096, 4096, (50, 33)).float() / 1024, torch.randn(33, 2)
    tile, logit = from_tile(s + shift, v), torch.tensor(shift + 0.5)
    stats = with_sink(read(tile), logit, log_l=tile.l.log()).stats
    want = dense(s, v, torch.tensor(0.5))
    assert (stats.entropy - want[1]).abs().max() < 2e-6
    joined = torch.cat([s, torch.full((50, 1), 0.5)], -1).double().softmax(-1)
    assert (stats.sink_mass - joined[:, -1]).abs().max() < 1e-7


def test_keys_of_minus_infinity_leave_everything_to_the_sink():
    q, k = torch.full((1, 1, 2, 4), -math.inf), torch.ones(1, 1, 3, 4)
    out, stats = at.attend(q, k, k, sink=torch.tensor([0.5]), kernel="reference")
    assert not out.any()
    assert not stats.entropy.any()
    assert (stats.sink_mass == 1).all()
    assert (stats.lse == 0.5).all()


def test_what_has_no_entropy_does_not_merge():
    x = torch.ones(1, 2)
    stats = Stats(None, None, x, x.long(), x, x.long())
    with pytest.raises(
        ValueError, match="stats must be those of softmax weights, which have an ent"
    ):
        unread(at.Attended(x[..., None], stats))
