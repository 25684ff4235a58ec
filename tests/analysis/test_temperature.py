"""Reachable entropies against exhaustive search and theory."""

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attentropy as at

an = at.analysis


def two_levels(n, top, span):
    s = torch.zeros(n, dtype=torch.double)
    s[:top] = span
    return torch.special.entr(s.softmax(-1)).sum().item()


@given(st.integers(2, 60), st.floats(0.01, 30))
def test_least_entropy_is_the_best_of_all_splits(n, span):
    want = min(two_levels(n, top, span) for top in range(1, n))
    least, most = an.entropy_range(n, bound=span / 2)
    assert least == pytest.approx(want, rel=1e-9, abs=1e-12)
    assert most == pytest.approx(math.log(n))


@given(st.integers(2, 40), st.floats(0.05, 3), st.integers(0, 10_000))
def test_no_bounded_scores_go_below(n, bound, seed):
    generator = torch.Generator().manual_seed(seed)
    s = bound * (2 * torch.rand(200, n, generator=generator, dtype=torch.double) - 1)
    s = torch.where(torch.rand(200, 1, generator=generator) < 0.5, s, bound * s.sign())
    entropy = torch.special.entr(s.softmax(-1)).sum(-1)
    assert entropy.min().item() >= an.entropy_range(n, bound).least - 1e-9


def test_approaches_the_bound_of_theory():
    from attentropy.theory.bounds import worst_deficit

    for span in (0.5, 2.0, 8.0):
        n = 1_000_000
        least, most = an.entropy_range(n, bound=span / 2)
        assert most - least == pytest.approx(worst_deficit(span), rel=1e-4)
    least, most = an.entropy_range(10**6)
    assert most - least == pytest.approx(0.4744746, abs=1e-5)


@given(st.integers(2, 5000), st.floats(0.01, 0.99))
def test_tau_is_the_largest_that_reaches_the_entropy(n, share):
    entropy = share * math.log(n)
    tau = an.tau_for_entropy(n, entropy)
    assert an.entropy_range(n, tau=tau).least <= entropy * (1 + 1e-9)
    assert an.entropy_range(n, tau=tau * 1.001).least > entropy


def test_tau_scales_with_the_bound_and_is_free_at_log_n():
    assert an.tau_for_entropy(64, 1.0, 2.0) == pytest.approx(2 * an.tau_for_entropy(64, 1.0))
    assert an.tau_for_entropy(64, math.log(64)) == math.inf


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: an.tau_for_entropy(64, 5.0),
            "entropy must be in (0, log n] = (0, 4.1589], got 5.0",
        ),
        (lambda: an.tau_for_entropy(64, 0.0), "entropy must be in (0, log n]"),
        (lambda: an.entropy_range(0), "n must be an integer >= 1, got 0"),
        (lambda: an.entropy_range(4, bound=-1.0), "bound must be positive and finite, got -1.0"),
        (lambda: an.entropy_range(4, tau=0.0), "tau must be positive and finite, got 0.0"),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build()
