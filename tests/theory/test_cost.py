import re

import pytest

from attentropy.theory.cost import VARIANTS, attention_cost, crossover_length


def test_counts():
    dense = attention_cost("dense", n=100, d_model=16, heads=2)
    assert dense == (8 * 100 * 256, 4 * 100 * 100 * 16, 20000, 80000)
    assert dense.total == dense.projections + dense.mixing
    assert attention_cost("flash", n=100, d_model=16, heads=2).kept == 400
    assert attention_cost("causal", n=3, d_model=1).mixing == 4 * 6
    assert attention_cost("window", n=5, d_model=1, window=2).mixing == 4 * 9
    assert (
        attention_cost("window", n=5, d_model=1, window=99).mixing
        == attention_cost("causal", n=5, d_model=1).mixing
    )
    assert attention_cost("linear", n=10, d_model=8, heads=2).mixing == 4 * 10 * 64 / 2


def test_mixing_overtakes_the_projections_at_twice_the_width():
    n = int(crossover_length(512))
    at = attention_cost("dense", n=n, d_model=512)
    assert at.mixing == at.projections


@pytest.mark.parametrize("variant", VARIANTS)
def test_doubling_the_length(variant):
    window = {"window": 4} if variant == "window" else {}
    one, two = (
        attention_cost(variant, n=n, d_model=8, **window).mixing for n in (10**5, 2 * 10**5)
    )
    assert two / one == pytest.approx(2 if variant in ("window", "linear") else 4, rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variant": "magic", "n": 1, "d_model": 1}, "variant must be one of dense"),
        ({"variant": "dense", "n": 0, "d_model": 1}, "n must be finite and >= 1, got 0"),
        ({"variant": "window", "n": 1, "d_model": 1}, "window must be at least 1"),
        ({"variant": "dense", "n": 1, "d_model": 1, "window": 3}, "window must be at least 1"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        attention_cost(**arguments)
