import math

from hypothesis import given
from hypothesis import strategies as st

from attentropy.scans.judging.trend import slope, slopes
from tests.report.synthetic import make_scan


@given(st.floats(-3, 3), st.floats(-5, 5))
def test_a_straight_line_gives_its_slope(gain, start):
    lengths = [64, 100, 256, 1000]
    found = slope(lengths, [start + gain * math.log(n) for n in lengths])
    assert math.isclose(found, gain, abs_tol=1e-5)


def test_missing_numbers_are_left_out_and_one_point_has_no_slope():
    assert slope([64, 128, 256], [1.0, None, 1.0]) == 0.0
    assert slope([64, 128], [None, 1.0]) is None
    assert slopes([]) == []


def test_uniform_heads_blur_and_slopes_have_the_shape_of_the_model():
    scan = make_scan(layers=3, heads=5)
    found = slopes(scan.measures)
    assert [len(layer) for layer in found] == [5, 5, 5]
    assert all(-0.1 < value < 1.5 for layer in found for value in layer)
