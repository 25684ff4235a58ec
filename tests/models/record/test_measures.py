"""Sums of one call, against dense weights in float64; what layers share of their counts."""

import math

import pytest
import torch

import attentropy as at
from attentropy.core.masks import Extent
from attentropy.core.resolve import Options, resolve
from attentropy.models.record import measures
from attentropy.models.record.measures import ROWS, CountedRows, measure
from attentropy.models.record.model_call import ModelCall
from attentropy.models.record.model_masks import causal_from_end, everything, read_table

CPU = torch.device("cpu")


def counts(mask, visible, *, start=1):
    found = measures._counts(mask, visible, CountedRows(start), dtype=torch.float32)
    return found.sums


def test_what_one_layer_counted_serves_only_calls_of_its_shape():
    mask = everything(Extent(2, 4, 3, 3, CPU))
    one = torch.tensor([[[1, 2, 3]]])
    two = one.expand(2, 4, 3).clone()
    assert counts(mask, two).shape == (3, 2, 4)
    assert counts(mask, one).shape == (3, 1, 1)
    assert counts(mask, one)[0].item() == 2
    assert counts(mask, one, start=2)[0].item() == 1


def masks(kind):
    extent = Extent(2, 4, 9, 9, CPU)
    if kind == "causal":
        return causal_from_end(extent)
    if kind == "full":
        return everything(extent)
    return read_table((torch.ones(9, 9).tril().bool() & real(kind))[:, None], extent)


def real(kind):
    """Queries that are not padding, [B,1,Q]."""
    return (torch.arange(9) >= torch.tensor([0, 4])[:, None])[:, None] if kind == "padded" else None


def oracle(q, k, v, mask, counted, sink=None):
    """Sums of ROWS over rows that count, by name, from dense weights."""
    q, k, v = (x.double() for x in (q, k, v))
    s = (q @ k.repeat_interleave(2, 1).mT * 8**-0.5).masked_fill(~mask.seen.dense(), -torch.inf)
    whole = s if sink is None else torch.cat([s, sink.view(1, 4, 1, 1).expand(2, 4, 9, 1)], -1)
    p = whole.softmax(-1)
    visible = mask.seen.dense().sum(-1)
    entropy, collision = torch.special.entr(p).sum(-1), p.square().sum(-1)
    keys = torch.zeros(2, 4, 9, 1, dtype=torch.int64)
    keys += 0 if mask.first is None else mask.first[..., None]
    first = p.gather(-1, keys)[..., 0]
    before = torch.zeros_like(first)
    before[:, :, 1:] = p[..., :9].diagonal(-1, 2, 3)
    rows = {
        "rows": torch.ones_like(entropy),
        "log_visible": visible.clamp(min=1).double().log(),
        "visible": visible.double(),
        "entropy": entropy,
        "perplexity": entropy.exp(),
        "normalized_entropy": entropy / visible.double().log(),
        "lse": whole.logsumexp(-1),
        "top_probability": p[..., :9].amax(-1),
        "varentropy": (p * (p.log().nan_to_num(neginf=0.0) + entropy[..., None]).square()).sum(-1),
        "collision": collision,
        "density": (visible * collision).rsqrt(),
        "noise_robustness": ((math.e - 1) * collision).rsqrt(),
        "output_norm": (p[..., :9] @ v.repeat_interleave(2, 1)).norm(dim=-1),
        "sink_mass": first + (0 if sink is None else p[..., 9]),
        "previous_share": before,
    }
    kept = visible >= 2
    if counted is not None:
        kept = kept & counted
    return {n: x.masked_fill(~kept, 0.0).sum((0, 2)) for n, x in rows.items()}


@pytest.mark.parametrize("sample", [None, 3])
@pytest.mark.parametrize("with_sink", [False, True])
@pytest.mark.parametrize("kind", ["causal", "full", "padded"])
def test_sums_of_rows_are_those_of_dense_weights(kind, with_sink, sample):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 9, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 5)
    sink = torch.randn(4) if with_sink else None
    mask = masks(kind)
    asked = ModelCall(resolve(q, k, v, Options(mask=mask.seen, sink=sink)), mask)
    out, stats = at.attend(q, k, v, mask=mask.seen.dense(), sink=sink)
    sums, kept = measure(asked, out, stats, counted=real(kind), sample=sample)
    want = oracle(q, k, v, mask, real(kind), sink=None if sink is None else sink.double())
    for name, got in zip(ROWS, sums.sums, strict=False):
        torch.testing.assert_close(got, want[name], atol=2e-4, rtol=1e-5, msg=f"{name} {got}")
    assert kept.entropy.shape == (2, 4, 9)
    assert kept.position.tolist() == list(range(9))


def test_without_rows_only_sampled_ones_tell_of_the_key_before():
    q = torch.randn(1, 2, 9, 8)
    mask = causal_from_end(Extent(1, 2, 9, 9, CPU))
    asked = ModelCall(resolve(q, q, q, Options(mask=mask.seen)), mask)
    found = at.attend(q, q, q, mask=at.causal)
    sums, kept = measure(asked, *found, counted=None, sample=3, every_row=False)
    assert sums.sums[ROWS.index("previous_share")].isnan().all()
    assert kept is None


def test_rows_that_count_are_told_by_a_start_or_a_mask():
    mask = causal_from_end(Extent(1, 1, 4, 4, CPU))
    visible = mask.seen.visible
    assert CountedRows.of(mask, visible, None).start == 1
    padded = torch.tensor([[[True, True, False, True]]])
    assert CountedRows.of(mask, visible, padded).mask.flatten().tolist() == [
        False, True, False, True,
    ]  # fmt: skip
    assert CountedRows(2).table(4, device=CPU).flatten().tolist() == [False, False, True, True]
    assert CountedRows(2).fill(torch.arange(4.0), 0.0).tolist() == [2.0, 3.0]
