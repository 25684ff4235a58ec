import math
from dataclasses import replace

import pytest

from attentropy.lab.experiments import alarms
from attentropy.lab.harness.results import RunResults
from attentropy.training.alarms import Alert

CONFIG = alarms.AlarmsConfig(kinds=("grouped decoder",), steps=6, calm=3, length=8, batch=2)


def test_a_run_has_diverged_if_its_loss_stays_high():
    losses = [3.0, 2.0, 2.0, 5.0, 2.0, 2.0, 5.0, 5.0]
    assert alarms.divergence(losses, smooth=1, rise=0.5) == (6, 5.0)
    since, last = alarms.divergence(losses[:6], smooth=1, rise=0.5)
    assert math.isnan(since)
    assert last == 2.0
    since, last = alarms.divergence([3.0, 2.0, math.nan], smooth=10, rise=0.5)
    assert since == 2
    assert math.isnan(last)
    slow = [3.0] * 5 + [3.2] * 20  # below the margin
    assert math.isnan(alarms.divergence(slow, smooth=1, rise=0.25)[0])


def test_rates_are_constant_or_grow_after_a_calm_start():
    config = alarms.AlarmsConfig(steps=100, warmup=10, calm=50, rate=0.001, wild=0.1, steep=0.2)
    healthy = alarms.rates(config, alarms.HEALTHY)
    assert healthy[9:] == pytest.approx([0.001] * 91)
    assert alarms.rates(config, alarms.FAST) == pytest.approx([3 * rate for rate in healthy])
    rising = alarms.rates(config, alarms.DIVERGING)
    assert rising[:50] == pytest.approx(healthy[:50])
    assert rising[-1] == pytest.approx(0.1)
    assert rising[74] == pytest.approx(0.01)
    assert alarms.rates(config, alarms.CLIPPED) == rising
    steep = alarms.rates(config, alarms.STEEP)
    assert (steep[0], steep[-1]) == pytest.approx((0.002, 0.2))
    assert alarms.rates(config, alarms.STEEP_CLIPPED) == steep


def test_both_sets_of_seeds_are_run_and_told_apart():
    first, second = (alarms.measure(CONFIG, "grouped decoder", seed) for seed in (0, 1))
    named = [(row["seeds"], row["number"], row["regime"]) for row in first]
    assert named == [
        ("judged", 1000, "healthy"), ("judged", 1000, "diverging"),
        ("judged", 1000, "diverging, clipped"),
        ("judged", 1000, "steep"), ("judged", 1000, "steep, clipped"), ("judged", 1000, "fast"),
        ("tuning", 0, "healthy"), ("tuning", 0, "diverging"),
    ]  # fmt: skip
    assert [row["number"] for row in second] == [1001] * 5
    assert len(alarms.measure(replace(CONFIG, ramped=1), "grouped decoder", 1)) == 3
    assert first[0]["loss"] != first[6]["loss"]
    again = alarms.train(CONFIG, "grouped decoder", alarms.HEALTHY, 1000)
    assert again.top == first[0]["max_logit"]


def test_a_clipped_run_is_the_same_until_an_alarm_rings():
    config = alarms.AlarmsConfig(steps=40, calm=20, length=8, batch=2, wild=30.0, warmup=5, every=2)
    plain, clipped = (
        alarms.train(config, "grouped decoder", regime, 3)
        for regime in (alarms.DIVERGING, alarms.CLIPPED)
    )
    rang = next(alert.step for alert in clipped.alerts if alert.name == "logit growth")
    assert plain.alerts[0] == clipped.alerts[0]
    assert plain.losses[: rang + 1] == clipped.losses[: rang + 1]
    assert plain.losses[rang + 1 :] != clipped.losses[rang + 1 :]
    assert alarms.most_told(plain.alerts) == 1


def test_alerts_are_counted_by_head_and_alarm():
    told = [Alert(1, "a", "note", ((0, 0), (0, 1)), ""), Alert(2, "b", "note", ((0, 0),), "")]
    assert alarms.most_told(told) == 1
    assert alarms.most_told([*told, Alert(3, "a", "note", ((0, 1),), "")]) == 2
    assert alarms.most_told([]) == 0


def row(seeds, number, regime, *, step_alarm=math.nan, step_diverged=math.nan, loss=2.0):
    return {
        "condition": "decoder", "seed": number % 1000, "seeds": seeds, "number": number,
        "regime": regime, "rang": float(step_alarm == step_alarm),
        "diverged": float(step_diverged == step_diverged), "step_alarm": step_alarm,
        "step_diverged": step_diverged, "lead": step_diverged - step_alarm, "loss": loss,
        "max_logit": 60.0 if regime == "fast" else 20.0, "alerts": 1.0, "repeats": 1.0,
    }  # fmt: skip


def test_conclusions_count_runs():
    rows = [
        row("judged", 1000, "healthy"),
        row("judged", 1001, "healthy", step_alarm=40.0),
        row("judged", 1000, "fast", step_alarm=50.0),
        row("judged", 1000, "diverging", step_alarm=200.0, step_diverged=230.0, loss=3.0),
        row("judged", 1001, "diverging", step_alarm=250.0, step_diverged=240.0, loss=4.0),
        row("judged", 1000, "diverging, clipped", step_alarm=200.0, loss=2.5),
        row("judged", 1001, "diverging, clipped", step_alarm=250.0, step_diverged=240.0),
        row("judged", 1000, "steep", step_alarm=30.0, step_diverged=150.0),
        row("judged", 1000, "steep, clipped", step_alarm=30.0, loss=1.5),
        row("tuning", 0, "healthy"),
    ]
    assert alarms.conclude(RunResults(rows)) == [
        "Judged seeds 1000 to 1001: an alarm rings in 1 of 2 healthy runs, whose largest logit is 20. "
        "Of 1 runs at three times the rate 0 diverge; an alarm rings in 1, and logits pass the limit "
        "in 1.",
        "Judged seeds 1000 to 1001: 2 of 2 runs whose rate rises diverge; in 1 of them an alarm rings "
        "before that, by 30 to 30 steps (median 30).",
        "Judged seed 1000: 1 of 1 runs whose rate rises from the first step on diverge; in 1 of them "
        "an alarm rings before that, by 120 to 120 steps (median 120).",
        "Tuning seed 0: an alarm rings in 0 of 1 healthy runs, whose largest logit is 20.",
        "Clipping at the first alert of logit growth keeps 1 of 2 diverging runs from diverging. The "
        "mean loss at the end of 2 runs is 2.25 with clipping and 3.50 without.",
        "Clipping at the first alert of logit growth keeps 1 of 1 steep runs from diverging. The mean "
        "loss at the end of 1 runs is 1.50 with clipping and 2.00 without.",
        "No head is reported more than 1 times by one alarm in one run.",
    ]
