"""Statistics of sampled rows, against dense weights in float64 that share no code with them."""

import pytest
import torch
import torch.nn.functional as F

import attentropy as at
from attentropy.core.masks import Extent
from attentropy.core.resolve import Options, resolve
from attentropy.models.record.model_call import ModelCall
from attentropy.models.record.model_masks import causal_from_end, everything, read_table
from attentropy.models.record.sampled import SAMPLED, rows_to_sample, sampled

CPU = torch.device("cpu")


@pytest.mark.parametrize("queries", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("most", [1, 3, 8, None])
@pytest.mark.parametrize("start", [0, 1, 2])
def test_samples_are_spaced_evenly_and_end_with_the_last_query(queries, most, start):
    if start >= queries:
        return
    rows = rows_to_sample(queries, most, start=start).tolist()
    assert rows[-1] == queries - 1
    assert rows[0] >= start
    count = queries if most is None else min(queries, most)
    steps = {b - a for a, b in zip(rows, rows[1:])}
    assert steps <= {queries // count, -(-queries // count)}
    assert rows == [row for row in rows_to_sample(queries, most).tolist() if row >= start]


def call(mask, q, k, **options):
    return ModelCall(resolve(q, k, k, Options(mask=mask.seen, **options)), mask)


def dense(asked, rows):
    """Logits and weights of some rows by plain products."""
    given = asked.call
    k = given.k.double().repeat_interleave(given.q.shape[1] // given.k.shape[1], 1)
    s = given.q.double()[:, :, rows] @ k.mT * given.scale.double()[..., None]
    if given.bias is not None:
        s = s + given.bias.double()[:, :, rows]
    s = s.masked_fill(~asked.mask.seen._replace(added=None).dense()[:, :, rows], -torch.inf)
    return s, s.softmax(-1)


def want_of(asked, rows, kept):
    """SAMPLED, row by row, without the number of rows."""
    s, p = dense(asked, rows)
    p = p.masked_fill(~kept[..., None], 0.0)  # a query that sees nothing has no weights
    seen = ~s.isneginf()
    count = seen.sum(-1)
    own = asked.mask.positions[rows]
    away = (own[:, None] - torch.arange(p.shape[-1])).abs()
    before = torch.zeros(p.shape[:3], dtype=p.dtype)
    turned = torch.zeros_like(p)
    for r, place in enumerate(own.tolist()):
        if place:
            before[:, :, r] = p[:, :, r, place - 1]
        for j in range(p.shape[-1]):
            turned[:, :, r, (place - j) % p.shape[-1]] = p[:, :, r, j]
    mean = s.masked_fill(~seen, 0.0).sum(-1) / count
    variance = (s - mean[..., None]).masked_fill(~seen, 0.0).square().sum(-1) / count
    received = (p.sum(2) / kept.sum(2).clamp(min=1)[..., None]).square().sum(-1)
    typical = turned.sum((0, 2), keepdim=True)
    return {
        "previous_of_sampled": before,
        "distance": (p * away).sum(-1),
        "received_concentration": received[..., None].expand(p.shape[:3]),
        "spread": variance.sqrt(),
        "logit_range": s.amax(-1) - s.masked_fill(~seen, torch.inf).amin(-1),
        "positional": F.cosine_similarity(turned, typical.expand_as(turned), dim=-1),
    }


@pytest.mark.parametrize("most", [None, 5])
@pytest.mark.parametrize("kind", ["causal", "full", "padded", "biased"])
def test_sums_are_those_of_dense_weights(kind, most):
    torch.manual_seed(0)
    extent = Extent(2, 4, 11, 11, CPU)
    q = torch.randn(2, 4, 11, 8)
    k = torch.randn(2, 2, 11, 8)
    mask, options = causal_from_end(extent), {}
    if kind == "full":
        mask = everything(extent)
    if kind == "padded":
        real = torch.arange(11) >= torch.tensor([0, 3])[:, None]
        mask = read_table((torch.ones(11, 11).tril().bool() & real[:, None])[:, None], extent)
    if kind == "biased":
        options = {"bias": torch.randn(1, 4, 11, 11)}
    asked = call(mask, q, k, **options)
    stats = at.attend(q, k, k, mask=mask.seen.dense(), **options).stats
    kept = stats.visible >= 2
    if kind == "padded":
        kept = kept & real[:, None]
    few = sampled(asked, stats, start=0, mask=kept, most=most)
    rows = few.index
    chosen = kept.expand(2, 4, 11)[:, :, rows]
    assert few.sums[0].tolist() == chosen.sum((0, 2)).tolist()
    want = want_of(asked, rows, chosen)
    for name, value in want.items():
        total = value.masked_fill(~chosen, 0.0).sum((0, 2))
        got = few.sums[SAMPLED.index(name)]
        torch.testing.assert_close(got, total, atol=1e-4, rtol=1e-5, msg=f"{name} {got} {total}")
    _, p = dense(asked, rows)
    flat = p.masked_fill(~chosen[..., None], 0.0).transpose(0, 1).flatten(1)
    torch.testing.assert_close(few.overlap, flat @ flat.mT, atol=1e-4, rtol=1e-4)
    if most is not None:
        assert few.first is None
        return
    first = 0 if mask.first is None else mask.first.expand(2, 1, 1)[..., None]
    keys = torch.zeros(2, 4, 11, 1, dtype=torch.int64) + first
    weight = p.gather(-1, keys)[..., 0].masked_fill(~chosen, 0.0).sum((0, 2))
    torch.testing.assert_close(few.first, weight, atol=1e-5, rtol=1e-5)


def test_weights_that_are_no_probabilities_tell_nothing():
    q = torch.randn(1, 2, 5, 8)
    mask = causal_from_end(Extent(1, 2, 5, 5, CPU))
    found = at.attend(q, q, q, mask=at.causal, weights=at.ReluSquared())
    asked = call(mask, q, q, weights=at.ReluSquared())
    few = sampled(asked, found.stats, start=1, mask=None, most=None)
    assert few.sums.isnan().all()
    assert few.overlap.isnan().all()


def test_cross_attention_has_no_distances():
    q, k = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 7, 8)
    mask = everything(Extent(1, 2, 5, 7, CPU), cross=True)
    few = sampled(call(mask, q, k), at.attend(q, k, k).stats, start=0, mask=None, most=None)
    for name in ("previous_of_sampled", "distance", "positional"):
        assert few.sums[SAMPLED.index(name)].isnan().all()
    assert few.sums[SAMPLED.index("spread")].isfinite().all()


def test_layers_that_see_alike_share_their_positions():
    q = torch.randn(1, 2, 5, 8)
    mask = causal_from_end(Extent(1, 2, 5, 5, CPU))
    mask.notes.clear()
    stats = at.attend(q, q, q, mask=at.causal).stats
    for _ in range(3):
        sampled(call(mask, q, q), stats, start=1, mask=None, most=None)
    assert len(mask.notes) == 1
