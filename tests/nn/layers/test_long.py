"""Segments and summaries: exact where they should be, right statistics, linear cost."""

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attentropy as at

nn = at.nn
FIELDS = ("entropy", "lse", "collision", "visible", "max_logit")


def tensors(queries, keys, heads=2, kv_heads=1, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(h, n, d):
        return torch.randn(1, h, n, d, generator=generator, dtype=torch.double)

    return draw(heads, queries, 4), draw(kv_heads, keys, 4), draw(kv_heads, keys, 3)


def assert_same(a, b, fields=FIELDS):
    torch.testing.assert_close(a.out, b.out)
    for field in fields:
        torch.testing.assert_close(getattr(a.stats, field), getattr(b.stats, field), msg=field)


def reference(q, k, v, window, levels, causal):
    """Single keys, with far ones replaced by the mean of their block, level by level."""
    outs, n, shift = [], k.shape[2], k.shape[2] - q.shape[2]
    for i in range(q.shape[2]):
        place, keys, values, used = i + shift, [], [], 0
        bounds = [
            (place // (window << l) - 1, place // (window << l) + 2) for l in range(levels + 1)
        ]
        bounds = [
            (max(0, a * (window << l)), min(n, b * (window << l)))
            for l, (a, b) in enumerate(bounds)
        ]
        for level in range(levels + 1):
            lo, hi = bounds[level]
            inner = bounds[level - 1] if level else (lo, lo)
            spans = [(lo, hi)] if level == 0 else [(lo, inner[0]), (inner[1], hi)]
            for a, b in spans:
                for start in range(a, b, 1 << level):
                    stop = min(start + (1 << level), b)
                    if causal and start > place:
                        continue
                    stop = stop if level else start + 1
                    count = stop - start
                    keys += [k[:, :, start:stop].mean(2)] * count
                    values += [v[:, :, start:stop].mean(2)] * count
                    used += count
        part = at.attend(q[:, :, i : i + 1], torch.stack(keys, 2), torch.stack(values, 2))
        outs.append(part)
    return outs


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("queries", "keys", "window", "levels"),
    [
        (40, 40, 4, None),
        (37, 37, 2, None),
        (5, 37, 4, None),
        (37, 37, 4, 1),
        (33, 33, 4, 0),
        (1, 1, 2, None),
    ],
)
def test_hierarchical_is_its_definition(causal, queries, keys, window, levels):
    q, k, v = tensors(queries, keys)
    got = nn.hierarchical(q, k, v, window, levels, mask=at.causal if causal else None)
    enough = 0
    while (window << enough) < keys:
        enough += 1
    deep = enough if levels is None else min(levels, enough)
    for i, want in enumerate(reference(q, k, v, window, deep, causal)):
        torch.testing.assert_close(got.out[:, :, i : i + 1], want.out)
        for field in FIELDS:
            mine = getattr(got.stats, field)[..., i : i + 1]
            torch.testing.assert_close(mine, getattr(want.stats, field), msg=f"{field} {i}")


@given(st.integers(1, 70), st.sampled_from([2, 4, 6]), st.booleans())
def test_equal_keys_give_full_attention(keys, window, causal):
    q, k, v = tensors(keys, keys)
    k, v = k[:, :, :1].expand_as(k), v[:, :, :1].expand_as(v)
    mask = at.causal if causal else None
    assert_same(nn.hierarchical(q, k, v, window, mask=mask), at.attend(q, k, v, mask=mask))


def test_everything_is_local_within_the_window():
    q, k, v = tensors(16, 16)
    got = nn.hierarchical(q, k, v, 16, mask=at.causal)
    assert_same(got, at.attend(q, k, v, mask=at.causal))
    assert torch.equal(got.stats.argmax, at.attend(q, k, v, mask=at.causal).stats.argmax)


def test_without_limit_every_key_is_seen():
    q, k, v = tensors(100, 100)
    causal = nn.hierarchical(q, k, v, 4, mask=at.causal).stats.visible[0, 0]
    assert torch.equal(causal, torch.arange(1, 101))
    assert (nn.hierarchical(q, k, v, 4).stats.visible == 100).all()
    few = nn.hierarchical(q, k, v, 4, 1).stats.visible
    assert few.max() <= 3 * 8


def test_scale_rules_see_all_keys():
    q, k, v = tensors(50, 50)
    k, v = k[:, :, :1].expand_as(k), v[:, :, :1].expand_as(v)
    for scale in (at.LogLength(2.0), at.LogLengthFrom(8), 0.7, nn.LearnedScale(2).double()):
        got = nn.hierarchical(q, k, v, 4, mask=at.causal, scale=scale)
        assert_same(got, at.attend(q, k, v, mask=at.causal, scale=scale))


def test_gradients():
    q, k, v = (x.requires_grad_() for x in tensors(11, 11))

    def run(q, k, v):
        out, stats = nn.hierarchical(q, k, v, 2)
        return out, stats.entropy, stats.lse, stats.collision

    assert torch.autograd.gradcheck(run, (q, k, v), fast_mode=True)


def test_float16_and_grouped_heads():
    q, k, v = (x.half() for x in tensors(30, 30, heads=4, kv_heads=2))
    out, stats = nn.hierarchical(q, k, v, 4)
    assert out.dtype == torch.float16
    assert stats.entropy.dtype == torch.float32
    assert out.shape == (1, 4, 30, 3)


@given(st.integers(1, 40), st.integers(0, 30), st.integers(1, 50))
def test_segmented_is_blocks_of_attention(queries, more, length):
    keys = queries + more
    q, k, v = tensors(queries, keys)
    own = (torch.arange(keys) // length)[more:, None] == torch.arange(keys) // length
    assert_same(nn.segmented(q, k, v, length), at.attend(q, k, v, mask=own))
    causal = nn.segmented(q, k, v, length, mask=at.causal, scale=at.LogLength())
    both = own & (torch.arange(keys) <= torch.arange(queries)[:, None] + more)
    assert_same(causal, at.attend(q, k, v, mask=both, scale=at.LogLength()))


@given(st.integers(0, 12), st.integers(0, 12))
def test_join_is_attention_over_the_union(one, two):
    q, k, v = tensors(3, one + two)
    joined = nn.join(
        at.attend(q, k[:, :, :one], v[:, :, :one]), at.attend(q, k[:, :, one:], v[:, :, one:])
    )
    assert_same(joined, at.attend(q, k, v))


def test_join_is_differentiable_where_a_part_is_blind():
    q, k, v = (x.requires_grad_() for x in tensors(3, 5))
    blind = at.attend(q, k, v, mask=torch.zeros(3, 5, dtype=torch.bool))
    joined = nn.join(blind, at.attend(q, k, v))
    grads = torch.autograd.grad(joined.out.sum() + joined.stats.entropy.sum(), (q, k, v))
    want = at.attend(q, k, v)
    for a, b in zip(
        grads,
        torch.autograd.grad(want.out.sum() + want.stats.entropy.sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_cost_grows_linearly():
    def seconds(n):
        q = torch.randn(1, 1, n, 16)
        best = 1e9
        for _ in range(3):
            start = time.process_time()
            nn.hierarchical(q, q, q, 32, 2, mask=at.causal)
            best = min(best, time.process_time() - start)
        return best

    seconds(2048)
    # 4 times the length: a quadratic cost would be 16 times
    assert seconds(16384) < 9 * seconds(4096)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 3}, "window must be even, got 3"),
        ({"window": 0}, "window must be >= 2, got 0"),
        ({"levels": -1}, "levels must be >= 0, got -1"),
        ({"mask": at.lookback(3)}, "hierarchical takes mask=None or causal"),
    ],
)
def test_bad_arguments(arguments, message):
    q, k, v = tensors(6, 6)
    with pytest.raises((ValueError, NotImplementedError)) as caught:
        nn.hierarchical(q, k, v, **{"window": 2, **arguments})
    assert message in str(caught.value)


def test_more_queries_than_keys_and_empty_segments_are_refused():
    q, k, v = tensors(6, 5)
    with pytest.raises(ValueError, match="number of queries must be at most the number of keys 5"):
        nn.hierarchical(q, k, v, 2)
    with pytest.raises(ValueError, match="length must be >= 1, got 0"):
        nn.segmented(k, k, v, 0)
