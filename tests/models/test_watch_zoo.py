"""Watched models of transformers give what their eager attentions give."""

import pytest
import torch

import attentropy as at
from tests.models.zoo import INTERFACE, TAPPED, build, eager_maps, first_output, inputs

pytest.importorskip("transformers")
# DeBERTa scripts functions on import
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")


def counted_rows(name, batch, kind, maps):
    """Queries that are not padding, [B,Q]."""
    mask = batch.get("attention_mask")
    queries = maps[0].shape[2]
    if mask is None or kind in ("decoder", "cross"):
        return torch.ones(maps[0].shape[0], queries, dtype=torch.bool)
    return mask.bool()


def group(row, pair):
    if not pair:
        return ""
    if row.kind == "cross":
        return "cross"
    return "encoder" if "encoder" in row.layer.split(".") else "decoder"


def expected(p, counted, *, sinks):
    """Means per head of the entropy and other statistics, from dense weights [B,H,Q,K]."""
    p = p.double()
    entropy = torch.special.entr(p).sum(-1)
    if sinks:  # the weights of the sink are not returned
        entropy = entropy + torch.special.entr((1 - p.sum(-1)).clamp(min=0))
    rows = counted[:, None] & ((p > 0).sum(-1) >= 2)
    rows = rows.expand_as(entropy)
    count = rows.sum((0, 2))
    mean = lambda x: (x * rows).sum((0, 2)) / count  # noqa: E731
    return {"entropy": mean(entropy), "top_probability": mean(p.amax(-1)), "rows": count}


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("name", [*INTERFACE, *TAPPED])
def test_entropy_and_outputs_equal_eager(name, padded):
    batch = inputs(name, padded=padded)
    out, maps = eager_maps(name, batch)
    model = build(name)
    with torch.no_grad(), at.watch(model, sample=None) as w:
        watched = model(**batch)
    difference = (first_output(out) - first_output(watched)).abs()
    if "attention_mask" in batch and difference.shape[1] == batch["attention_mask"].shape[1]:
        difference = difference[batch["attention_mask"].bool()]
    assert difference.max() < 1e-5 * first_output(out).abs().max().clamp(min=1)
    found = {}
    for row in w.heads():
        found.setdefault(group(row, len(maps) > 1), []).append(row)
    assert sorted(found) == sorted(maps)
    for kind, layers in maps.items():
        counted = counted_rows(name, batch, kind, layers)
        heads = [h for p in layers for h in range(p.shape[1])]
        assert [row.head for row in found[kind]] == heads
        want = [expected(p, counted, sinks=name == "gpt_oss") for p in layers]
        for key in ("entropy", "top_probability", "rows"):
            values = torch.cat([layer[key].double() for layer in want])
            got = torch.tensor([getattr(row, key) for row in found[kind]], dtype=torch.float64)
            torch.testing.assert_close(got, values, atol=1e-5, rtol=0)
