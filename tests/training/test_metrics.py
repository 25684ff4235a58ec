import math

from attentropy.core.statistics import TABLE
from attentropy.training.metrics import Metrics, summarize
from tests.rows import head_row


def test_metrics_are_aggregates_and_the_worst_heads():
    rows = [head_row(h, entropy=float(h), max_logit=10.0 * h) for h in range(8)]
    found = summarize(rows, worst=2)
    assert found["attn/entropy/mean"] == 3.5
    assert found["attn/entropy/min"] == 0.0
    assert found["attn/max_logit/max"] == 70.0
    assert found["attn/layer00/max_logit"] == 70.0
    assert [found[f"attn/lowest_entropy/{i}"] for i in (1, 2)] == [0.0, 1.0]
    assert [found[f"attn/highest_logit/{i}"] for i in (1, 2)] == [70.0, 60.0]
    assert "attn/lowest_entropy/3" not in found
    assert len(summarize([head_row(h % 8, index=h // 8) for h in range(800)])) < 230


def test_what_is_logged_is_what_the_table_asks_for():
    found = summarize([head_row(h) for h in range(8)], worst=0)
    wanted = [f"attn/{name}/{kind}" for name, one in TABLE.items() for kind in one.logged]
    assert wanted == [name for name in found if "/layer" not in name]
    assert "attn/entropy/mean" in wanted


def test_heads_without_a_number_are_left_out():
    rows = [head_row(0, entropy=math.nan), head_row(1, entropy=2.0)]
    assert summarize(rows)["attn/entropy/mean"] == 2.0
    lost = summarize([head_row(output_norm=math.nan)])
    assert "attn/output_norm/min" not in lost


def test_metrics_are_a_dictionary_with_what_it_was_made_of():
    rows = [head_row()]
    metrics = Metrics({"a": 1.0}, rows=rows, loss=2.0)
    assert dict(metrics) == {"a": 1.0}
    assert (metrics.rows, metrics.alerts, metrics.loss) == (tuple(rows), (), 2.0)
