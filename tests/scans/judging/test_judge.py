import math

import msgspec
import pytest

import attentropy as at
from attentropy.models.losses.paired import Paired
from attentropy.models.plan import Judged
from attentropy.models.slope import slopes
from attentropy.scans.judging.judge import advise, concluded, diagnosed, judge, slopes_of
from attentropy.scans.schema import Excess, Remedy
from tests.report.synthetic import change_heads, make_scan

CALM = {
    "entropy": 2.0, "normalized_entropy": 0.5, "perplexity": 7.4, "density": 0.5,
    "max_logit": 6.0, "top_probability": 0.4, "sink_mass": 0.05, "output_norm": 1.0,
    "gradient_flow": 0.7, "noise_robustness": 1.4, "distance": 9.0, "previous_share": 0.1,
    "spread": 2.0, "received_concentration": 0.05, "deficit": 1.5, "positional": 0.3,
    "likeness": 0.2, "twin": 1,
}  # fmt: skip


def judged(**changes):
    """A scan of 1 x 2 calm heads at 64 and 256; head 0 is changed, by functions of the length."""
    scan = make_scan(layers=1, heads=2, lengths=(64, 256), trained=64, maps=0, calibrate=False)
    scan.remedies = []
    for measure in scan.measures:
        change_heads(measure, **CALM)
        own = {name: new(measure.length) for name, new in changes.items()}
        measure.rows[0] = msgspec.structs.replace(measure.rows[0], **own)
    return scan


def names(scan):
    return [(finding.name, finding.severity) for finding in diagnosed(scan)]


def test_calm_heads_have_no_findings():
    assert names(judged()) == []


def test_findings_are_made_where_the_model_is_at_home():
    found = diagnosed(judged(max_logit=lambda n: 1e7 if n == 64 else 1.0))
    assert [finding.heads for finding in found] == [[(0, 0)]]
    assert found[0].severity == "critical"
    assert names(judged(max_logit=lambda n: 1e7 if n == 256 else 1.0)) == []


def test_growth_is_described_over_all_lengths_and_offers_nothing():
    scan = judged(entropy=lambda n: 0.5 + math.log(n / 64))
    (found,) = diagnosed(scan)
    assert (found.name, found.severity, found.call) == ("entropy grows with length", "note", "")


def test_a_scan_judges_as_diagnose_does_from_the_rows_in_its_file():
    scan = judged(sink_mass=lambda n: 0.9, entropy=lambda n: 0.5 + math.log(n / 64))
    judge(scan)
    assert [f.name for f in scan.findings] == ["sink", "entropy grows with length"]
    assert scan.findings[:1] == at.diagnose(scan.measures[0].rows)
    rows = [row for measure in scan.measures for row in measure.rows]
    assert scan.slopes == [list(slopes(rows).values())] == slopes_of(scan)
    assert scan.slopes[0][0].value == pytest.approx(1.0)
    assert scan.slopes[0][1].value == pytest.approx(0.0)


def test_a_scan_without_measures_has_nothing_to_say():
    scan = judged()
    scan.measures = []
    judge(scan)
    assert scan.slopes == scan.findings == scan.advice == []
    assert scan.verdict is None


def test_growth_of_entropy_alone_is_healthy_and_offers_nothing():
    scan = judged(entropy=lambda n: 0.5 + math.log(n / 64))
    for measure in scan.measures:
        measure.loss = 3.0
    judge(scan)
    assert scan.verdict.state == "healthy"
    assert scan.verdict.sentence.startswith("Healthy up to 256 tokens: the loss is 3.000 at 64")
    assert scan.advice == []


def test_a_finished_encoder_is_healthy_and_not_told_about_training():
    scan = judged(max_logit=lambda n: 77.4, entropy=lambda n: 0.5 + math.log(n / 64))
    for measure in scan.measures:
        measure.loss = measure.perplexity = None
    judge(scan)
    assert scan.verdict.sentence == "Healthy up to 256 tokens: no head is broken."
    assert not any("train" in f.advice or "diverge" in f.advice for f in scan.findings)
    assert scan.advice == []


def test_broken_heads_are_a_fault():
    scan = judged(perplexity=lambda n: 1.01)
    judge(scan)
    assert (scan.verdict.state, scan.verdict.breaks_at) == ("faulty", None)
    assert scan.verdict.sentence.startswith(
        "1 head is broken (1 collapsed); the loss does not rise"
    )


def test_a_loss_that_rises_on_the_same_text_breaks_whatever_is_known_of_training():
    scan = judged()
    scan.model.trained_length = None
    for measure, rise in zip(scan.measures, (0.0, 0.3), strict=True):
        measure.stretches = [2.0 + 0.1 * (i % 5) + rise + 0.01 * (i % 3) * rise for i in range(40)]
    judge(scan)
    assert (scan.verdict.state, scan.verdict.breaks_at) == ("breaks", 64)
    assert scan.verdict.sentence.startswith("Breaks beyond 64 tokens: the same text loses 0.30")
    assert scan.verdict.cause is None


def remedy(name, after, error=0.01):
    change = Paired(before=3.0, after=after, error=error, texts=9)
    return Remedy(
        name=name, call=f"at.steer(model, {name})", length=256, change=change,
        perplexity_before=20.0, perplexity_after=math.exp(after),
    )  # fmt: skip


def test_only_what_helps_by_two_standard_errors_is_offered_the_best_first():
    scan = judged()
    scan.remedies = [remedy("best", 2.5), remedy("good", 2.9), remedy("unsure", 2.95, error=0.03),
                     remedy("bad", 3.2)]  # fmt: skip
    found = advise(scan)
    assert [one.call for one in found] == ["at.steer(model, best)", "at.steer(model, good)"]
    assert "3.000 → 2.500 (-0.500 ± 0.010)" in found[0].text


def test_a_plan_that_fails_on_other_texts_is_not_offered():
    scan = make_scan(lengths=(64, 256), trained=64)
    scan.remedies = [remedy("plan of calibrate", 2.5)]
    assert len(advise(scan)) == 1
    worse = Paired(before=2.0, after=2.1, error=0.1, texts=4)
    judged = Judged(length=256, last=64, held_out=True, change=worse, truncation=worse)
    scan.plan = msgspec.structs.replace(scan.plan, judged=judged)
    assert advise(scan) == []


def test_what_was_found_beyond_the_trained_length_stays_when_a_scan_is_judged_again():
    scan = judged()
    change = Paired(before=2.0, after=2.5, error=0.01, texts=9)
    scan.verdict = concluded(scan, excess=[Excess(64, 256, change)], noticed_at=70, cause=None)
    before = scan.verdict
    assert (before.breaks_at, before.noticed_at) == (64, 70)
    judge(scan)
    assert scan.verdict == before
    assert before.sentence == (
        "Breaks at about 64 tokens, its trained length: from 70 on the loss is above that of "
        "truncation to 64, by 0.50 ± 0.01 nats per token at 256."
    )
