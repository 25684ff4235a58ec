import pytest

from attentropy.core.statistic import Statistic


def statistic(**more):
    return Statistic(symbol="x", label="X", formula="x", meaning="m", low="l", high="h", **more)


@pytest.mark.parametrize(
    ("more", "shades"),
    [
        ({}, None),
        ({"range": (0.0, None)}, None),
        ({"range": (0.0, 1.0)}, (0.0, 1.0)),
        ({"range": (0.0, None), "colours": (0.0, 50.0)}, (0.0, 50.0)),
        ({"range": (0.0, 1.0), "colours": (0.5, 1.0)}, (0.5, 1.0)),
    ],
)
def test_colours_run_over_the_range_unless_told_otherwise(more, shades):
    assert statistic(**more).shades == shades
