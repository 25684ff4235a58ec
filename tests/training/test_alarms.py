import math

import pytest

from attentropy.training.alarms import (
    EntropyCollapse,
    LogitGrowth,
    NearUniform,
    NotFinite,
    Sample,
    crossing,
)
from tests.rows import head_row


def course(*changes, every=10):
    """Samples of one head, one set of changes each."""
    return [Sample(i * every, (head_row(**change),)) for i, change in enumerate(changes)]


def test_collapse_is_judged_against_the_start():
    alarm = EntropyCollapse()
    fine = course({"entropy": 2.5}, {"entropy": 2.4}, {"entropy": 0.7})
    assert alarm.listen(fine) is None
    alert = alarm.listen(course({"entropy": 2.5}, {"entropy": 2.4}, {"entropy": 0.3}))
    assert alert.heads == ((0, 0),)
    assert alert.text == "entropy collapsed to 0.3 nats in layers.0.attn.0"
    # a head that was sharp from the beginning has not collapsed
    assert alarm.listen(course({"entropy": 0.3}, {"entropy": 0.3})) is None
    assert alarm.listen(course({"entropy": 0.0})) is None


def test_growth_is_foreseen_and_then_seen():
    alarm = LogitGrowth(limit=50.0)
    rising = course(*({"max_logit": 10.0 + 4 * i} for i in range(6)))
    alert = alarm.listen(rising)
    assert (alert.severity, alert.forecast) == ("warning", 100)  # 10 + 0.4 step = 50
    assert "will pass 50 at about step 100" in alert.text
    alert = alarm.listen([*rising, Sample(60, (head_row(max_logit=55.0),))])
    assert (alert.severity, alert.forecast) == ("critical", 60)
    assert "logits reached 55 (limit 50)" in alert.text


@pytest.mark.parametrize(
    "logits",
    [
        [20.0] * 6,
        [20, 18, 22, 19, 21, 20],
        [1.0, 1.5, 2, 2.5, 3, 3.5],  # rising, but far from the limit
        [20, 20.1, 20.2, 20.3, 20.4, 20.5],  # the limit is hundreds of samples away
        [10, 14, 18],  # too few
        [math.nan] * 6,
    ],
)
def test_no_false_forecast(logits):
    assert LogitGrowth().listen(course(*({"max_logit": v} for v in logits))) is None


def test_crossing_follows_a_line_or_an_exponential():
    assert crossing([(0, 0.0), (10, 10.0), (20, 20.0)], 50.0) == 50
    assert crossing([(0, 1.0), (10, 2.0), (20, 4.0), (30, 8.0)], 64.0) == 60
    assert crossing([(0, 3.0), (10, 2.0)], 50.0) is None
    assert crossing([(0, 3.0), (10, 3.0)], 50.0) is None


def test_uniform_heads_ring_only_if_they_were_not():
    flat = {"deficit": 1e-5}
    assert NearUniform().listen(course(flat, flat)) is None
    alert = NearUniform().listen(course({}, flat))
    assert alert.text == "attention went uniform in layers.0.attn.0"


def test_not_finite_names_the_heads_or_the_loss():
    alarm = NotFinite()
    assert alarm.listen(course({})) is None
    assert alarm.listen(course({"entropy": math.nan})).heads == ((0, 0),)
    assert alarm.listen(course({"max_logit": math.inf})).severity == "critical"
    alert = alarm.listen([Sample(3, (head_row(),), math.nan)])
    assert alert.text == "the loss is not finite"
