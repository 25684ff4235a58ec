import math

import pytest
import torch
from torch import nn

import attentropy as at
from attentropy.core.errors import ArgumentError, ArgumentTypeError
from tests.processes import spawn

torchmetrics = pytest.importorskip("torchmetrics")
from attentropy.training.callbacks.torchmetrics import AVERAGED, AttentionEntropy  # noqa: E402


def rows_by_hand(q, k):
    """Entropies of causal attention in float64, without rows that see one key."""
    scores = (q.double() @ k.double().mT) / math.sqrt(q.shape[-1])
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    log_p = scores.masked_fill(future, -torch.inf).log_softmax(-1)
    entropy = -(log_p.exp() * log_p.masked_fill(future, 0.0)).sum(-1)
    return entropy[:, :, 1:].flatten()


def calls():
    torch.manual_seed(0)
    return [[torch.randn(b, 3, n, 8) for _ in "qkv"] for b, n in ((2, 5), (1, 17))]


def test_the_mean_is_over_rows_of_all_updates():
    metric = AttentionEntropy()
    for q, k, v in calls():
        metric.update(at.attend(q, k, v, mask=at.causal).stats)
    expected = torch.cat([rows_by_hand(q, k) for q, k, _ in calls()]).mean()
    torch.testing.assert_close(metric.compute(), expected, atol=1e-6, rtol=0)
    metric.reset()
    metric.update([])
    assert math.isnan(metric.compute())


def test_rows_of_a_watch_are_taken_too_and_merge_with_others():
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 5, 8)
    with at.watch(layer) as w:
        layer(x, x, x, need_weights=False)
    metric, other = AttentionEntropy(), AttentionEntropy()
    rows = w.heads()
    metric.update(rows)
    assert float(metric.total / metric.rows) == pytest.approx(
        sum(row.entropy for row in rows) / len(rows)
    )
    q, k, v = calls()[0]
    other.update(at.attend(q, k, v).stats)
    total = (metric.total + other.total) / (metric.rows + other.rows)
    metric.merge_state(other)
    assert metric.compute() == total


def test_it_stands_in_a_collection():
    collection = torchmetrics.MetricCollection(
        {
            "H": AttentionEntropy(),
            "share": AttentionEntropy(statistic="normalized_entropy"),
        }
    )
    q = torch.zeros(1, 2, 4, 8)
    values = collection(at.attend(q, q, q).stats)
    assert float(values["H"]) == pytest.approx(math.log(4))
    assert float(values["share"]) == pytest.approx(1.0)
    assert collection.clone(prefix="val/").compute().keys() == {"val/H", "val/share"}
    collection.reset()
    collection.update([])
    assert math.isnan(collection.compute()["H"])


def test_sums_of_other_processes_are_added():
    """With a gather that answers for the second process."""
    theirs = AttentionEntropy()
    waiting = []

    def gather(mine, group=None):
        return [mine, waiting.pop(0)]

    metric = AttentionEntropy(dist_sync_fn=gather, distributed_available_fn=lambda: True)
    for one, (q, k, v) in zip((metric, theirs), calls(), strict=True):
        one.update(at.attend(q, k, v, mask=at.causal).stats)
    waiting += [theirs.total, theirs.rows]
    expected = torch.cat([rows_by_hand(q, k) for q, k, _ in calls()]).mean()
    torch.testing.assert_close(metric.compute(), expected, atol=1e-6, rtol=0)


def process(rank):
    metric = AttentionEntropy()
    q, k, v = calls()[rank]
    metric.update(at.attend(q, k, v, mask=at.causal).stats)
    return float(metric.compute())


@pytest.mark.slow
def test_processes_are_merged():
    expected = torch.cat([rows_by_hand(q, k) for q, k, _ in calls()]).mean()
    assert spawn(process, 2) == pytest.approx([float(expected)] * 2, abs=1e-6)


def test_bad_arguments():
    with pytest.raises(ArgumentError, match="statistic must be one of entropy, .*got 'max_logit'"):
        AttentionEntropy(statistic="max_logit")
    assert "entropy" in AVERAGED
    with pytest.raises(ArgumentTypeError, match="seen must be the statistics of attend"):
        AttentionEntropy().update(torch.ones(3))
    q, k, v = calls()[0]
    with pytest.raises(AttributeError, match="entropy"):
        AttentionEntropy().update(at.attend(q, k, v, stats="none").stats)
