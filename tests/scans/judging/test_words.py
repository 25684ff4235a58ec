import pytest

from attentropy.models.losses.cause import Cause, Gap
from attentropy.models.losses.paired import Paired
from attentropy.models.slope import Slope
from attentropy.scans.judging import words
from attentropy.scans.schema import Verdict
from tests.report.synthetic import make_scan


def sloped(value):
    scan = make_scan(layers=2, heads=2)
    scan.slopes = [[Slope(value)] * 2] * 2
    return scan


def test_the_headline_is_the_verdict():
    scan = sloped(0.9)
    assert words.headline(scan) == "Attention measured at 512 tokens."
    scan.verdict = Verdict(state="healthy", sentence="Healthy up to 512 tokens.")
    assert words.headline(scan) == "Healthy up to 512 tokens."


def test_the_trained_length_and_its_source_are_said():
    scan = make_scan()
    scan.model.trained_source = "max_position_embeddings"
    assert "The trained length is 128 (max_position_embeddings)." in words.sentences(scan)
    scan.model.trained_length = None
    said = " ".join(words.sentences(scan))
    assert "The trained length is not known, so nothing beyond it is judged" in said


def test_the_probes_are_told_or_why_there_are_none():
    scan = make_scan()
    change = Paired(before=2.0, after=2.5, error=0.1, texts=4)
    parts = {
        "damage": change,
        "distance": change,
        "dilution": change,
        "length": 512,
        "trained": 128,
    }
    gaps = [Gap(gap=600, farthest=663, change=change)]
    for cause, said in (
        (Cause(name="distance", probe="clipped", gaps=gaps, **parts),
         "Short windows with the same distances lose +0.50 ± 0.10 at 663 nats per token."),
        (Cause(name="dilution", probe="thinned", missing="There is no probe.", **parts),
         "There is no probe."),
    ):  # fmt: skip
        scan.verdict = Verdict(state="breaks", sentence="Breaks.", cause=cause)
        assert said in words.sentences(scan)


def test_special_tokens_and_bad_texts_are_said():
    scan = make_scan()
    scan.input.special = "Every window begins with <s>, as the tokenizer adds them"
    scan.input.warnings = ["100% of the tokens are unknown to the tokenizer"]
    scan.verdict = Verdict(state="healthy", sentence="Healthy.")
    said = words.sentences(scan)
    assert "Every window begins with <s>, as the tokenizer adds them." in said
    doubt = "Healthy. But 100% of the tokens are unknown to the tokenizer."
    assert words.headline(scan) == doubt


def test_sentences_count_heads_with_trouble_once():
    scan = make_scan(layers=2, heads=2)
    scan.findings = [
        type(scan.findings[0])(
            name=name, severity=severity, heads=[(0, 0)], labels=["a.0"], evidence="e", advice="a"
        )
        for name, severity in (("dead", "critical"), ("uniform", "warning"), ("sink", "note"))
    ]
    first = words.sentences(scan)[0]
    assert first == "3 of 4 heads are healthy; the others: 1 dead, 1 uniform."


def test_an_encoder_has_no_perplexity_and_a_stopped_scan_says_so():
    scan = make_scan()
    for measure in scan.measures:
        measure.perplexity = measure.loss = None
    scan.complete = False
    said = " ".join(words.sentences(scan))
    assert "erplexity" not in said
    assert said.endswith("attentropy scan --resume continues it.")
    assert "Length 2,048 was left out: the model takes 512." in said
    assert all(tile.label != "Text perplexity" for tile in words.tiles(scan))


def test_home_is_the_longest_length_within_the_trained_one():
    scan = make_scan(lengths=(64, 100, 256), trained=128)
    assert words.home(scan).length == 100
    scan.model.trained_length = None
    assert words.home(scan).length == 64


def test_heads_that_a_window_limits_are_said_and_left_out_of_the_median():
    scan = sloped(0.1)
    assert "window" not in " ".join(words.sentences(scan))
    scan.slopes = [[Slope(0.1), Slope(0.2)], [Slope(1.0, "visible"), Slope(None, "visible")]]
    assert words.median_slope(scan) == pytest.approx(0.15)
    said = " ".join(words.sentences(scan))
    assert "A window limits what 2 heads see" in said
    assert "their slope is taken against the keys that they can see" in said
    scan.slopes = [[Slope(1.0, "visible")] * 2] * 2
    assert words.median_slope(scan) is None
    assert words.headline(scan) == "Attention measured at 512 tokens."


def test_medians_leave_out_heads_without_a_number():
    assert words.median_of([[1.0, None], [5.0, 2.0]]) == 2.0
    assert words.median_of([[None]]) is None
