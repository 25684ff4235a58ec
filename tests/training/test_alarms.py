import math

import pytest

from attentropy.core.errors import ArgumentError
from attentropy.training.alarms import (
    EntropyCollapse,
    LogitGrowth,
    NearUniform,
    NotFinite,
    Sample,
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


def test_a_forecast_rings_only_if_its_lower_end_passes_the_limit():
    line = [20.0, 25.0, 30.0, 35.0, 40.0, 45.0]
    sure = LogitGrowth().listen(course(*({"max_logit": v} for v in line)))
    assert (sure.severity, sure.forecast) == ("warning", 60)
    noisy = [20.0, 33.0, 22.0, 43.0, 32.0, 45.0]  # nearly the same line: 19.8 + 5.1 i
    assert LogitGrowth().listen(course(*({"max_logit": v} for v in noisy))) is None
    calm = LogitGrowth(confidence=0.5)  # its lower end is the line itself
    assert calm.listen(course(*({"max_logit": v} for v in noisy))).severity == "warning"


def test_growth_that_slows_down_is_not_extended():
    logits = [24 * (1 - 0.7**i) for i in range(30)]  # as in healthy training
    history = course(*({"max_logit": v} for v in logits))
    assert all(LogitGrowth().listen(history[: i + 1]) is None for i in range(30))


def test_only_the_heads_that_grow_are_named():
    samples = [
        Sample(10 * i, tuple(head_row(h, max_logit=20.0 + h * 2 * i) for h in range(4)))
        for i in range(6)
    ]
    assert LogitGrowth().listen(samples).heads == ((0, 2), (0, 3))  # 40 and 50, next 60 and 80


def test_a_slow_fall_rings_at_one_key_and_a_fast_one_before():
    slow = course(*({"entropy": 2.5 * 0.85**i} for i in range(24)))
    rings = [EntropyCollapse().listen(slow[: i + 1]) is not None for i in range(24)]
    assert rings.index(True) == 21  # 2.5 * 0.85^21 = 0.082 < log 1.1 < 2.5 * 0.85^20
    fast = course(*({"entropy": 2.5 * 0.5**i} for i in range(6)))
    rings = [EntropyCollapse().listen(fast[: i + 1]) is not None for i in range(6)]
    assert rings.index(True) == 4  # 0.156 is below a quarter of 1.25, the median of the start


def test_heads_are_compared_with_themselves_when_the_order_changes():
    before = (head_row(0, entropy=2.5), head_row(1, entropy=0.2))
    after = (head_row(1, entropy=0.2), head_row(0, entropy=0.2), head_row(2, entropy=0.1))
    alert = EntropyCollapse().listen([Sample(0, before), Sample(1, after)])
    assert alert.heads == ((0, 0),)  # head 1 was sharp before, head 2 is new


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


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LogitGrowth(window=2), "LogitGrowth: window must be an integer >= 3, got 2"),
        (lambda: LogitGrowth(window=6.0), "LogitGrowth: window must be an integer >= 3, got 6.0"),
        (lambda: LogitGrowth(confidence=1.0), "confidence must be between 0 and 1, got 1.0"),
        (lambda: EntropyCollapse(base=0), "EntropyCollapse: base must be an integer >= 1, got 0"),
        (lambda: EntropyCollapse(window=1), "EntropyCollapse: window must be an integer >= 2"),
    ],
)
def test_bad_arguments(make, said):
    with pytest.raises(ArgumentError, match=said):
        make()
