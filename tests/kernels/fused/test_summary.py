"""Sums over rows are those of weights computed in double, whatever is hidden; calls add up."""

import math

import pytest
import torch

import attentropy as at
from attentropy.core.resolve import Options, resolve
from attentropy.kernels.attended import attended
from attentropy.kernels.fused import kernel, library, summary
from attentropy.kernels.fused.plan import CallPlan
from attentropy.kernels.fused.summary import SummedRows

pytestmark = pytest.mark.skipif(library.serving is None, reason="no compiled kernel")
NAMES = sorted(summary.NAMES - {"overlap"})
PLACES = (*NAMES, "overlap")


def tensors(batch, heads, key_heads, queries, keys, *, width=24, dtype=torch.float32):
    torch.manual_seed(1)
    shapes = ((heads, queries, width), (key_heads, keys, width), (key_heads, keys, 5))
    return [(1.5 * torch.randn(batch, *shape)).to(dtype) for shape in shapes]


def oracle(q, k, v, rows, *, shown, bias=None, softcap=None):
    """Sums [H] by name, and inner products of heads [H,H], from all weights in double."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (
        q.double(),
        k.double().repeat_interleave(group, 1),
        v.double().repeat_interleave(group, 1),
    )
    s = q @ k.mT / math.sqrt(q.shape[3])
    s = s if softcap is None else softcap * (s / softcap).tanh()
    s = (s if bias is None else s + bias.double()).masked_fill(~shown, -torch.inf)
    p, log_p = s.softmax(-1), s.log_softmax(-1)
    n, K = shown.expand_as(p).sum(-1).double(), p.shape[3]
    counted = torch.arange(p.shape[2]) >= rows.start
    if rows.counted is not None:
        counted = counted & rows.counted
    counted = counted.expand(p.shape[:3])
    H = -(p * log_p.masked_fill(p == 0, 0.0)).sum(-1)
    c = p.square().sum(-1)
    each = {
        "rows": torch.ones_like(H), "log_visible": n.log(), "visible": n, "entropy": H,
        "normalized_entropy": H / n.log(), "perplexity": H.exp(), "collision": c,
        "varentropy": (p * (log_p.masked_fill(p == 0, 0.0) + H[..., None]).square()).sum(-1),
        "density": (n * c).rsqrt(), "top_probability": p.amax(-1), "lse": s.logsumexp(-1),
        "noise_robustness": (c * (math.e - 1)).rsqrt(), "output_norm": (p @ v).norm(dim=-1),
        "previous_share": torch.full_like(H, torch.nan),
        "sink_mass": p[..., 0] if rows.first is None
        else torch.stack([p[b, ..., int(rows.first[b % len(rows.first)])] for b in range(len(p))]),
    }  # fmt: skip
    found = {name: x.masked_fill(~counted, 0.0).sum((0, 2)) for name, x in each.items()}
    some, kept = p[:, :, rows.sampled], counted[:, :, rows.sampled]
    p_kept = some.masked_fill(~kept[..., None], 0.0)
    z = s[:, :, rows.sampled]
    z = z.masked_fill(z.isneginf(), torch.nan)
    few = {
        "sampled_rows": torch.ones_like(kept, dtype=torch.float64),
        "spread": (z.square().nanmean(-1) - z.nanmean(-1).square()).clamp(min=0).sqrt(),
        "logit_range": z.nan_to_num(-math.inf).amax(-1) - z.nan_to_num(math.inf).amin(-1),
        "received_concentration": (p_kept.sum(2) / kept.sum(2).clamp(min=1)[..., None])
        .square().sum(-1)[..., None].expand(kept.shape),
    }  # fmt: skip
    own = torch.zeros(p.shape[2]) if rows.position is None else rows.position
    own = own[rows.sampled].long()
    few["distance"] = (some * (own[:, None] - torch.arange(K)).abs()).sum(-1)
    before = some.gather(-1, (own - 1).clamp(0, K - 1).expand(kept.shape)[..., None])[..., 0]
    few["previous_of_sampled"] = before * ((own > 0) & (own <= K))
    turned = p_kept.gather(-1, ((own[:, None] - torch.arange(K)) % K).expand_as(some))
    mean = turned.sum((0, 2), keepdim=True)
    few["positional"] = torch.cosine_similarity(turned, mean, dim=-1)
    if rows.position is None:
        for name in ("distance", "previous_of_sampled", "positional"):
            few[name] = torch.full_like(few["spread"], torch.nan)
    found |= {name: x.masked_fill(~kept, 0.0).sum((0, 2)) for name, x in few.items()}
    flat = p_kept.transpose(0, 1).flatten(1)
    return torch.stack([found[name] for name in NAMES]), flat @ flat.mT


def empty(heads):
    sums = torch.zeros(len(NAMES) + heads, heads, dtype=torch.float64)
    return [sums, torch.full((heads,), -torch.inf, dtype=torch.float64)]


def summed(q, k, v, rows, **options):
    call = resolve(q, k, v, Options(**options))
    assert summary.serves(call)
    found = attended(call, kernel.attend(call))
    into = empty(q.shape[1])
    fields = summary.fields(rows, tuple(q.shape[:3]), PLACES)
    summary.add(call, found.out, found.stats, fields, into)
    return into, found


def rows_of(shown, *, start=0, counted=None, sampled=None, cross=False, first=None):
    queries, keys = shown.shape[2:]
    return SummedRows(
        visible=shown.sum(-1),
        counted=counted,
        start=start,
        sampled=torch.arange(start, queries) if sampled is None else torch.tensor(sampled),
        position=None if cross else torch.arange(queries) + keys - queries,
        first=first,
        step=1,
    )


def check(into, expected, heads, *, rtol=1e-5):
    sums, overlap = expected
    for name, got, want in zip(NAMES, into[0], sums, strict=False):
        torch.testing.assert_close(got, want, rtol=rtol, atol=3e-5, equal_nan=True, msg=name)
    torch.testing.assert_close(into[0][-heads:], overlap, rtol=rtol, atol=1e-5)


CAUSAL = torch.ones(1, 1, 37, 37, dtype=torch.bool).tril()
CASES = {
    "full": (torch.ones(1, 1, 9, 70, dtype=torch.bool), {}, {}),
    "cross": (torch.ones(1, 1, 9, 70, dtype=torch.bool), {}, {"cross": True}),
    "causal": (CAUSAL, {"mask": at.causal}, {"start": 1}),
    "sampled": (CAUSAL, {"mask": at.causal}, {"start": 1, "sampled": [3, 11, 20, 28, 36]}),
    "few": (CAUSAL, {"mask": at.causal}, {"start": 1, "sampled": [18, 36]}),
    "window": (
        CAUSAL & ~CAUSAL.tril(-4),
        {"mask": at.causal & at.lookback(4)},
        {"start": 1},
    ),
    "softcap": (CAUSAL, {"mask": at.causal, "softcap": 3.0}, {"start": 1}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_sums_are_those_of_all_weights(name, dtype):
    shown, options, more = CASES[name]
    q, k, v = tensors(2, 6, 2, *shown.shape[2:], dtype=dtype)
    rows = rows_of(shown, **more)
    into, found = summed(q, k, v, rows, **options)
    expected = oracle(q, k, v, rows, shown=shown, softcap=options.get("softcap"))
    if len(rows.sampled) < 4:
        expected[0][NAMES.index("positional")] = torch.nan
    # outputs of a low precision are summed as they are
    check(into, expected, 6, rtol=1e-5 if dtype == torch.float32 else 4e-3)
    assert torch.equal(into[1], found.stats.max_logit[:, :, rows.start :].amax((0, 2)).double())


def test_a_table_padding_and_a_first_key_of_each_entry():
    torch.manual_seed(0)
    shown = torch.rand(2, 1, 21, 21) < 0.4
    shown[0, :, :, :2] = False  # nobody sees the first two keys of the first entry
    shown[1, :, :, 0] = True
    shown[0, :, 5] = False  # a row without keys does not count
    counted = (shown.sum(-1) >= 2) & (torch.arange(21) < torch.tensor([20, 13]).view(2, 1, 1))
    q, k, v = tensors(2, 4, 4, 21, 21)
    rows = rows_of(shown, counted=counted, first=torch.tensor([2, 0]))
    into, _ = summed(q, k, v, rows, mask=at.dense(shown))
    check(into, oracle(q, k, v, rows, shown=shown), 4)
    assert int(into[0][NAMES.index("rows"), 0]) == int(counted.sum())


def test_a_bias_and_the_keys_that_it_hides_by_a_low_number():
    torch.manual_seed(0)
    bias = torch.randn(2, 3, 19, 33)
    hidden = torch.rand(2, 3, 19, 33) < 0.3
    bias[hidden] = -200.0
    q, k, v = tensors(2, 3, 1, 19, 33)
    rows = rows_of(~hidden)
    into, _ = summed(q, k, v, rows, bias=bias)
    check(into, oracle(q, k, v, rows, shown=~hidden, bias=bias), 3)


def test_a_weight_that_is_not_a_number_reaches_the_sums_of_its_head_alone():
    q, k, v = tensors(1, 2, 2, 12, 12)
    q[0, 1, 7, 0] = torch.nan
    rows = rows_of(CAUSAL[..., :12, :12], start=1)
    into, _ = summed(q, k, v, rows, mask=at.causal)
    first, second = into[0][:-2].T
    assert (
        second[[NAMES.index(n) for n in ("entropy", "spread", "logit_range", "distance")]]
        .isnan()
        .all()
    )
    known = [i for i, name in enumerate(NAMES) if name != "previous_share"]
    assert first[known].isfinite().all()
    assert into[1].isnan().tolist() == [False, True]


def test_one_row_in_so_many_stands_for_the_others():
    q, k, v = tensors(1, 2, 2, 40, 40)
    rows = rows_of(torch.ones(1, 1, 40, 40, dtype=torch.bool), sampled=[19, 39])
    every, _ = summed(q, k, v, rows)
    some, _ = summed(q, k, v, rows._replace(step=4))
    at_sink = NAMES.index("sink_mass")
    p = (q.double() @ k.double().mT / math.sqrt(24)).softmax(-1)[0, :, :, 0]
    torch.testing.assert_close(every[0][at_sink], p.sum(1), rtol=1e-5, atol=0)
    torch.testing.assert_close(some[0][at_sink], p[:, 3::4].mean(1) * 40, rtol=1e-5, atol=0)


def test_a_plan_gives_the_output_and_adds_up():
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors(2, 4, 2, 37, 37))
    rows = rows_of(CAUSAL, start=1)
    into, found = summed(q, k, v, rows, mask=at.causal)
    full, causal = (resolve(q, k, v, Options(mask=mask)) for mask in (None, at.causal))
    plan, twice = CallPlan.of(full).seeing(causal.seen), empty(4)
    summing = summary.Summing(rows, (2, 4, 37), PLACES)
    for _ in range(2):
        copies = [x.clone() for x in (q, k, v)]  # other memory, of the same strides
        out = plan.sum(*copies, summing, twice)
        assert torch.equal(out, found.out)
        assert out.stride() == found.out.stride()
    torch.testing.assert_close(twice[0], 2 * into[0], rtol=1e-12, atol=0, equal_nan=True)
    assert torch.equal(twice[1], into[1])


def test_sums_do_not_depend_on_what_scratch_memory_held():
    q, k, v = tensors(1, 4, 2, 37, 37)
    rows = rows_of(CAUSAL, start=1)
    clean, _ = summed(q, k, v, rows, mask=at.causal)
    library.serving.poison(True)
    try:
        dirty, _ = summed(q, k, v, rows, mask=at.causal)
    finally:
        library.serving.poison(False)
    assert torch.equal(clean[0].nan_to_num(-1.0), dirty[0].nan_to_num(-1.0))


def test_what_is_not_summed_here():
    q, k, v = tensors(1, 2, 2, 8, 8)
    for options in (
        {"sink": torch.zeros(2)},
        {"weights": at.ReluSquared()},
    ):
        assert not summary.serves(resolve(q, k, v, Options(**options)))
    assert not summary.serves(resolve(q.double(), k.double(), v.double(), Options()))
