import math
from dataclasses import replace

import msgspec
import pytest
import torch

import attentropy as at
from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.models.diagnose import Finding, Thresholds, random_deficit
from attentropy.models.slope import slopes
from tests.rows import N
from tests.rows import head_row as healthy

SICK = {
    "not finite": {"entropy": math.nan},
    "exploding logits": {"max_logit": 60.0},
    "near-uniform": {"deficit": 0.001, "normalized_entropy": 0.999},
    "collapsed": {"perplexity": 1.02},
    "saturated": {"gradient_flow": 0.01},
    "sink": {"sink_mass": 0.9},
    "dead": {"output_norm": 1e-4},
    "duplicates": {"likeness": 0.999},
    "positional only": {"previous_share": 0.95},
}


@pytest.mark.parametrize("name", SICK)
def test_each_sickness_is_found_in_its_head_alone(name):
    rows = [healthy(h) for h in range(7)] + [healthy(7, **SICK[name])]
    (finding,) = at.diagnose(rows)
    assert finding.name == name
    assert finding.heads == [(0, 7)]
    assert finding.labels == ["layers.0.attn.7"]
    assert finding.evidence
    assert finding.advice
    assert name in str(finding)


def test_healthy_heads_have_no_findings():
    assert at.diagnose([healthy(h) for h in range(8)]) == []


def test_the_most_serious_comes_first_and_severity_grows():
    rows = [healthy(0, sink_mass=0.9), healthy(1, max_logit=100.0), healthy(2, perplexity=1.02)]
    assert [f.severity for f in at.diagnose(rows)] == ["critical", "warning", "note"]


def test_a_sink_head_is_called_neither_collapsed_nor_saturated():
    sink = healthy(perplexity=1.01, gradient_flow=0.01, sink_mass=0.99)
    assert [f.name for f in at.diagnose([sink])] == ["sink"]
    before = healthy(perplexity=1.01, gradient_flow=0.01, previous_share=0.95)
    assert [f.name for f in at.diagnose([before])] == ["positional only"]


@pytest.mark.parametrize(
    ("dtype", "logit", "found"),
    [("bfloat16", 51, ("exploding logits", "warning")), ("bfloat16", 49, None),
     ("float16", 399, ("large logits", "note")), ("float16", 401, ("exploding logits", "warning")),
     ("float32", 77.4, ("large logits", "note")), ("float32", 40, None)],
)  # fmt: skip
def test_logits_are_judged_by_the_precision_that_holds_them(dtype, logit, found):
    rows = [healthy(max_logit=float(logit))]
    names = [(f.name, f.severity) for f in at.diagnose(rows, thresholds=Thresholds(dtype=dtype))]
    assert names == ([] if found is None else [found])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_limit_is_where_neighbouring_logits_are_a_quarter_apart(dtype):
    limit = 50 * Thresholds(dtype=dtype).room
    near = torch.tensor([limit], dtype=getattr(torch, dtype))
    step = torch.nextafter(near, torch.tensor([torch.inf], dtype=near.dtype)) - near
    assert float(step) == 0.25


def test_no_finding_offers_a_call_or_speaks_of_training():
    rows = [healthy(h, **sick) for h, sick in enumerate(SICK.values())]
    for finding in at.diagnose(rows):
        assert finding.call == ""
        assert "train" not in finding.advice
        assert "learning rate" not in finding.advice


def test_short_rows_are_not_judged():
    assert at.diagnose([healthy(visible=2.0, deficit=0.0)]) == []


def test_growth_needs_two_lengths_takes_the_slope_and_is_no_fault():
    def grown(length, slope):
        entropy = 1.0 + slope * math.log(length)
        return healthy(
            length=length, visible=length / 2 + 1, entropy=entropy,
            deficit=math.log(length) - entropy + 2,
        )  # fmt: skip

    rows = [grown(64, 1.0), grown(256, 1.0), grown(1024, 1.0)]
    assert slopes(rows)["layers.0.attn", 0, 0].value == pytest.approx(1.0)
    (finding,) = at.diagnose(rows)
    assert (finding.name, finding.severity) == ("entropy grows with length", "note")
    assert finding.call == ""
    assert at.diagnose([grown(64, 0.3), grown(1024, 0.3)]) == []
    assert at.diagnose([grown(64, 1.0)]) == []


def test_bounded_scores_cannot_focus_on_one_of_many_keys():
    limits = Thresholds(score_range=2.0)
    (finding,) = at.diagnose([healthy()], thresholds=limits)
    assert finding.name == "cannot focus"
    # e^R / (e^R + n - 1) reaches one half at R = log(n - 1)
    enough = replace(limits, score_range=math.log(N - 1) + 1e-6)
    assert at.diagnose([healthy()], thresholds=enough) == []


@pytest.mark.parametrize("spread", [0.05, 0.2])
def test_random_deficit_is_that_of_random_scores(spread):
    torch.manual_seed(0)
    s = spread * torch.randn(40000, N, dtype=torch.float64)
    p = s.softmax(-1)
    deficit = math.log(N) - torch.special.entr(p).sum(-1).mean().item()
    assert random_deficit(N, spread) == pytest.approx(deficit, rel=0.05)


def test_thresholds_are_those_of_the_theory():
    from attentropy.theory import bounds, gaussian

    expected = gaussian.expected_deficit(N, 0.05)
    assert random_deficit(N, 0.05) == pytest.approx(expected, rel=1e-2)
    reach = 2.0
    limits = Thresholds(score_range=reach, focus=bounds.top_probability_bound(N, reach) - 1e-9)
    assert at.diagnose([healthy()], thresholds=limits) == []
    above = replace(limits, focus=limits.focus + 1e-6)
    assert [f.name for f in at.diagnose([healthy()], thresholds=above)] == ["cannot focus"]


@pytest.mark.parametrize("order", [1, -1])
def test_heads_are_judged_at_their_longest_length_whatever_comes_first(order):
    def rows(short, long):
        lengths = ({"length": 64, "visible": 64.0}, {"length": 256, "visible": 256.0})
        return [healthy(**lengths[0], **short), healthy(**lengths[1], **long)][::order]

    sick = {"max_logit": 60.0}
    assert [f.name for f in at.diagnose(rows({}, sick))] == ["exploding logits"]
    assert at.diagnose(rows(sick, {})) == []


def test_a_dead_head_is_dead_beside_the_median_of_its_layer():
    usual = [healthy(h, output_norm=1.0) for h in range(6)]
    loud = healthy(6, output_norm=100.0)  # beside the largest norm, all the others would be dead
    silent = healthy(7, output_norm=0.019)
    assert at.diagnose([*usual, loud]) == []
    (finding,) = at.diagnose([*usual, loud, silent])
    assert (finding.name, finding.heads) == ("dead", [(0, 7)])
    # a layer of its own is judged by its own median
    elsewhere = [
        msgspec.structs.replace(row, layer="layers.1.attn", output_norm=0.015) for row in usual
    ]
    assert at.diagnose([*usual, *elsewhere]) == []


def test_bad_arguments():
    with pytest.raises(ArgumentTypeError, match=r"rows must be rows of watch.*, got str"):
        at.diagnose(["x"])
    with pytest.raises(ArgumentError, match=r"Thresholds: sink must be >= 0, got -1"):
        Thresholds(sink=-1)
    with pytest.raises(ArgumentError, match=r"Thresholds: dtype must be one of .*, got 'int8'"):
        Thresholds(dtype="int8")
    with pytest.raises(ArgumentTypeError, match=r"Thresholds: slope must be a number, got 'a'"):
        Thresholds(slope="a")


def test_heads_are_judged_at_their_longest_length():
    short, long = healthy(length=64), healthy(length=512, max_logit=60.0)
    for rows in ([short, long], [long, short]):
        assert [f.name for f in at.diagnose(rows)] == ["exploding logits"]
    short, long = healthy(length=64, max_logit=60.0), healthy(length=512)
    assert at.diagnose([short, long]) == []


def test_dead_heads_are_those_far_below_the_median_of_their_layer():
    norms = [1.0, 1.0, 1.0, 0.9, 200.0]  # one loud head does not make the others dead
    assert at.diagnose([healthy(h, output_norm=x) for h, x in enumerate(norms)]) == []
    norms = [1.0, 1.0, 1.0, 0.019, 200.0]
    (finding,) = at.diagnose([healthy(h, output_norm=x) for h, x in enumerate(norms)])
    assert (finding.name, finding.heads) == ("dead", [(0, 3)])
    # each layer has a median of its own
    rows = [healthy(h, output_norm=1e-3, layer="quiet", index=1) for h in range(4)]
    assert at.diagnose([*rows, *(healthy(h) for h in range(4))]) == []


def test_a_finding_survives_a_file():
    (finding,) = at.diagnose([healthy(h) for h in range(7)] + [healthy(7, sink_mass=0.9)])
    again = msgspec.json.decode(msgspec.json.encode(finding), type=Finding)
    assert again == finding
    with pytest.raises(msgspec.ValidationError, match="severity"):
        msgspec.convert(msgspec.to_builtins(finding) | {"severity": "awful"}, Finding)
