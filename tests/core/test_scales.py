import math

import numpy as np
import pytest
import torch

import attentropy as at

VISIBLE = torch.tensor([0, 1, 2, 100, 65536])
RULES = {
    "inverse sqrt": (at.InverseSqrt(), lambda n, d: d**-0.5),
    "log length": (at.LogLength(1.5), lambda n, d: 1.5 * math.log(n) / d),
    "fixed length": (at.LogLength(length=512), lambda n, d: math.log(512) / d),
    "log length from": (
        at.LogLengthFrom(64), lambda n, d: max(1, math.log(n) / math.log(64)) / d**0.5,
    ),
    "mixed": (at.Mixed(0.5, 0.2), lambda n, d: 0.5 / d**0.5 + 0.2 * math.log(n) / d),
    "temperature": (at.Temperature(0.07), lambda n, d: 1 / 0.07),
    "constant": (at.Constant(3.0), lambda n, d: 3.0),
    "power": (at.PowerLength(0.5, 64), lambda n, d: (n / 64) ** 0.5 / d**0.5),
    "info": (
        at.InfoScale(64),
        lambda n, d: math.sqrt((1 - n ** (-2 / d)) / (1 - 64 ** (-2 / d))) / d**0.5,
    ),
    "cos": (at.CosScale(12.0), lambda n, d: 12.0),
    "cos with growth": (
        at.CosScale(12.0, growth=at.LogLengthFrom(64)),
        lambda n, d: 12 * max(1, math.log(n) / math.log(64)),
    ),
    "power log": (at.PowerLog(0.5, -1.0, shift=1), lambda n, d: (1 + 0.5 / math.log(n + 1)) / d**0.5),
    "hold entropy": (
        at.HoldEntropy(128, 2.0),
        lambda n, d: math.sqrt(max(0, 1 + 2 * math.log(n / 128) / 4)) / d**0.5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("head_dim", [1, 64])
def test_formulas(name, head_dim):
    rule, formula = RULES[name]
    want = [formula(max(1, n), head_dim) for n in VISIBLE.tolist()]
    got = rule(head_dim, VISIBLE)
    torch.testing.assert_close(got, torch.tensor(want), atol=0, rtol=1e-6)


@pytest.mark.parametrize("name", RULES)
def test_float64_counts_give_float64_scales(name):
    assert RULES[name][0](8, VISIBLE.double()).dtype == torch.float64


def test_hold_entropy_takes_one_spread_for_each_head():
    rule = at.HoldEntropy(16, [1.0, 2.0])
    got = rule(4, torch.tensor([[[16, 64]]]).expand(1, 2, 2))
    for head, spread in enumerate((1.0, 2.0)):
        one = at.HoldEntropy(16, spread)(4, torch.tensor([16, 64]))
        torch.testing.assert_close(got[0, head], one)


def test_causal_rows_get_their_own_length():
    q = torch.randn(1, 1, 6, 8, dtype=torch.float64)
    got = at.attend(q, q, q, mask=at.causal, scale=at.LogLength(2.0)).stats.lse
    for i in range(6):
        s = q[0, 0, i] @ q[0, 0, : i + 1].T * 2 * math.log(i + 1) / 8
        assert got[0, 0, i].item() == pytest.approx(s.logsumexp(0).item())


def test_cross_attention_counts_keys():
    q, k = torch.randn(1, 1, 3, 8), torch.randn(1, 1, 50, 8)
    got = at.attend(q, k, k, scale=at.LogLength())
    want = at.attend(q, k, k, scale=math.log(50) / 8)
    torch.testing.assert_close(got.out, want.out)


BAD = {
    "kappa nan": (lambda: at.LogLength(math.nan), "LogLength: kappa must be finite, got nan"),
    "kappa negative": (lambda: at.LogLength(-1.0), "LogLength: kappa must be > 0, got -1.0"),
    "length": (lambda: at.LogLength(length=0), "LogLength: length must be >= 1, got 0"),
    "reference": (lambda: at.LogLengthFrom(1), "LogLengthFrom: reference must be >= 2, got 1"),
    "tau zero": (lambda: at.Temperature(0), "Temperature: tau must be > 0, got 0"),
    "tau negative": (lambda: at.Temperature(-0.1), "Temperature: tau must be > 0, got -0.1"),
    "value": (lambda: at.Constant(math.inf), "Constant: value must be finite, got inf"),
    "text": (lambda: at.Constant("1"), "Constant: value must be a number, got '1'"),
    "beta": (lambda: at.Mixed(beta=math.nan), "Mixed: beta must be finite, got nan"),
    "exponent": (lambda: at.PowerLength(math.nan, 3), "PowerLength: exponent must be finite"),
    "spread": (lambda: at.HoldEntropy(10, 0.0), "HoldEntropy: spread must be > 0, got 0.0"),
    "spreads": (lambda: at.HoldEntropy(10, (1.0, -1.0)), "HoldEntropy: spread must be > 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    make, message = BAD[name]
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.parametrize("name", RULES)
def test_a_rule_may_be_asked_for_one_count(name):
    rule, formula = RULES[name]
    for n in (1, 512, 512.0):
        assert rule(16, n).item() == pytest.approx(formula(n, 16))


def test_numbers_of_numpy():
    assert at.Temperature(np.float32(0.5))(4, 7) == 2.0
    assert at.LogLengthFrom(np.int64(64)) == at.LogLengthFrom(64)
    for spread in (np.array([1.0, 2.0]), torch.tensor([1.0, 2.0]), [1.0, 2.0]):
        assert at.HoldEntropy(512, spread) == at.HoldEntropy(512, (1.0, 2.0))
    for spread in (np.float32(1.5), torch.tensor(1.5)):
        assert at.HoldEntropy(512, spread) == at.HoldEntropy(512, 1.5)


def test_step_log_is_the_scale_of_llama_4_and_of_ministral():
    for position in (0, 8190, 8191, 8192, 16383, 100000):
        visible = torch.tensor(float(position + 1), dtype=torch.float64)
        llama = math.log(math.floor((position + 1) / 8192) + 1) * 0.1 + 1
        assert float(at.StepLog()(64, visible) * 8) == pytest.approx(llama)
        ministral = 1 + 0.1 * math.log(1 + math.floor(position / 16384))
        rule = at.StepLog(16384, beta=0.1, start=1)
        assert float(rule(64, visible) * 8) == pytest.approx(ministral)


def test_log_length_from_is_qwens_log_n():
    for n in (1, 2047, 2048, 2049, 30000):
        qwen = math.log(n, 2048) if n > 2048 else 1
        visible = torch.tensor(float(n), dtype=torch.float64)
        assert float(at.LogLengthFrom(2048)(64, visible) * 8) == pytest.approx(qwen)


def test_power_log_is_the_scale_of_asentmax():
    visible = torch.tensor([1.0, 64.0, 4096.0], dtype=torch.float64)[None, None]
    found = at.PowerLog((0.5, 2.0), gamma=(1.0, 0.5), delta=0.25)(16, visible)
    for head, (beta, gamma) in enumerate([(0.5, 1.0), (2.0, 0.5)]):
        wanted = [(0.25 + beta * math.log(n) ** gamma) / 4 for n in (1, 64, 4096)]
        assert found[0, head].tolist() == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: at.StepLog(0), "StepLog: reference must be >= 1, got 0"),
        (lambda: at.StepLog(start=-1), "StepLog: start must be >= 0, got -1"),
        (lambda: at.PowerLog(math.nan), "PowerLog: beta must be finite, got nan"),
        (lambda: at.PowerLog(1.0, (1.0, math.inf)), "PowerLog: gamma must be finite, got inf"),
        (
            lambda: at.PowerLog(1.0, -1.0),
            "PowerLog: gamma must be >= 0 without a shift: log 1 is 0",
        ),
        (lambda: at.PowerLog(1.0, shift=-1), "PowerLog: shift must be >= 0, got -1"),
        (lambda: at.InfoScale(1), "InfoScale: reference must be >= 2, got 1"),
        (lambda: at.CosScale(0.0), "CosScale: value must be > 0, got 0.0"),
    ],
)
def test_bad_arguments_of_scales_in_steps_and_powers(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_growth_that_is_no_rule_is_refused():
    with pytest.raises(TypeError, match="CosScale: growth must be a scale rule or None, got 2.0"):
        at.CosScale(1.0, growth=2.0)


def test_info_scale_as_its_authors_compute_it():
    # (1 - l ** (-2 / d)) ** 0.5 over its value at the trained length; d = 128, trained at 64
    factor = at.InfoScale(64)(128, torch.tensor([64, 512, 4096], dtype=torch.float64)) * 128**0.5
    assert factor.tolist() == pytest.approx([1.0, 1.2149703703, 1.3917915854])
