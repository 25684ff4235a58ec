import math

import torch

from attentropy.training.pictures import CELL, PICTURED, RAMP, UNKNOWN, heat_map
from tests.rows import head_row


def test_pictures_are_of_the_logged_statistics_whose_range_is_known():
    assert PICTURED == {
        "normalized_entropy": (0.0, 1.0),
        "max_logit": (0.0, 50.0),
        "sink_mass": (0.0, 1.0),
        "gradient_flow": (0.0, 1.0),
    }


def test_heat_map_is_layers_by_heads_in_the_colours_of_the_ramp():
    values = [0.0, 1.0, 2.0, 0.25, math.nan]  # of one layer; 2.0 is above what is lightest
    rows = [head_row(h, index=1, normalized_entropy=value) for h, value in enumerate(values)]
    picture = heat_map(rows, "normalized_entropy", low=0.0, high=1.0)
    assert picture.shape == (2 * CELL, 5 * CELL, 3)
    assert (picture[:CELL] == UNKNOWN).all()  # layer 0 has no heads
    first, last, above, between, unknown = picture[CELL, ::CELL]

    def colour(text):
        return torch.tensor([int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)])

    assert torch.equal(first, colour(RAMP[0]))
    assert torch.equal(last, colour(RAMP[-1]))
    assert torch.equal(above, last)
    torch.testing.assert_close(between, (colour(RAMP[1]) + colour(RAMP[2])) / 2)
    assert (unknown == UNKNOWN).all()


def test_the_ramp_grows_lighter():
    shades = [head_row(h, normalized_entropy=h / 20) for h in range(21)]
    picture = heat_map(shades, "normalized_entropy", low=0.0, high=1.0)[0, ::CELL]
    light = picture @ torch.tensor([0.299, 0.587, 0.114])
    assert (light.diff() > 0).all()
