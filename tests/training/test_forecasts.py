import numpy as np
import pytest
from scipy import stats

from attentropy.training.forecasts import Lines

STEPS = np.array([0.0, 10.0, 20.0, 35.0, 40.0, 55.0, 60.0])


@pytest.fixture
def values():
    rng = np.random.default_rng(0)
    return 5 + STEPS[:, None] * rng.normal(size=5) + rng.normal(size=(7, 5)) * 3


def test_lines_are_those_of_scipy(values):
    lines = Lines.through(STEPS, values)
    for head in range(5):
        fit = stats.linregress(STEPS, values[:, head])
        assert lines.slope[head] == pytest.approx(fit.slope)
        assert lines.level[head] == pytest.approx(fit.intercept + fit.slope * STEPS.mean())
        noise = fit.stderr * np.sqrt(((STEPS - STEPS.mean()) ** 2).sum())
        assert lines.noise[head] == pytest.approx(noise)


def test_a_new_sample_is_above_the_lower_end_as_often_as_promised():
    rng = np.random.default_rng(1)
    course = 3 + 0.2 * STEPS[:, None] + rng.normal(size=(7, 20_000))
    new = 3 + 0.2 * 100.0 + rng.normal(size=20_000)
    for confidence in (0.5, 0.9, 0.99):
        above = np.mean(new > Lines.through(STEPS, course).lower_end(100.0, confidence))
        assert above == pytest.approx(confidence, abs=4 * np.sqrt(0.25 / 20_000))


def test_an_exact_line_has_no_error():
    lines = Lines.through(STEPS, np.stack([2 + 0.5 * STEPS, 8 - STEPS], 1))
    assert lines.lower_end(100.0, 0.99) == pytest.approx([52.0, -92.0])
    np.testing.assert_allclose(lines.reach(52.0), [100.0, np.inf])


def test_a_course_that_is_not_finite_has_no_line(values):
    values[2, 1], values[3, 2] = np.nan, np.inf
    lower = Lines.through(STEPS, values).lower_end(100.0, 0.95)
    assert np.isnan(lower).tolist() == [False, True, True, False, False]
