import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch

from attentropy.report.findings import pictures


def test_weights_are_causal_distributions():
    found = pictures.weights(pictures.healthy())
    wanted = torch.from_numpy(pictures.healthy()).masked_fill(
        torch.ones(10, 10).triu(1).bool(), -torch.inf
    )
    np.testing.assert_allclose(found, wanted.softmax(-1).numpy(), rtol=1e-12)


def test_bfloat16_is_that_of_torch():
    scores = pictures.shifted(60.0)
    wanted = torch.from_numpy(scores).to(torch.bfloat16).double().numpy()
    np.testing.assert_array_equal(pictures.rounded_to_bfloat16(scores), wanted)


@pytest.mark.parametrize(
    "svg",
    [
        pictures.heat_map(pictures.weights(pictures.on_one_key())),
        pictures.heat_map(np.full((10, 10), np.nan)),
        pictures.bars([0.1, 0.5, 0.0], marked=1),
        pictures.curve([0.0, 0.5, 1.0], limit=0.9),
    ],
)
def test_drawings_are_well_formed_and_stay_inside(svg):
    drawn = ET.fromstring(svg)
    assert drawn.attrib["viewBox"] == "0 0 120 120"
    for rect in drawn.iter("{http://www.w3.org/2000/svg}rect"):
        assert 0 <= float(rect.attrib["x"]) < 120
        assert 0 <= float(rect.attrib["y"]) < 120


def test_a_heat_map_is_as_dark_as_its_weights():
    svg = pictures.heat_map(pictures.weights(pictures.on_the_first()))
    table = pictures.weights(pictures.on_the_first())
    assert f'fill-opacity="{table[9, 0]:.3f}"' in svg
    assert "NaN" not in svg


def test_ill_heads_are_ill_and_healthy_ones_are_not():
    entropy = lambda p: -(p * np.log(np.clip(p, 1e-300, 1))).sum(-1)[4:]  # noqa: E731
    assert (np.exp(entropy(pictures.weights(pictures.on_one_key()))) < 1.1).all()
    assert (np.exp(entropy(pictures.weights(pictures.healthy()))) > 1.1).all()
    assert pictures.weights(pictures.on_the_first())[1:, 0].mean() > 0.6
