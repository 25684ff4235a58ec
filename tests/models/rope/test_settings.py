import math

import msgspec
import pytest

from attentropy.core.errors import ArgumentError
from attentropy.models.rope import settings
from attentropy.models.rope.settings import Rope

EACH = {
    "linear": settings.linear(trained=64, to=96),
    "ntk": settings.ntk(trained=64, to=96, theta=1e4, width=8),
    "dynamic": settings.dynamic(trained=64),
    "yarn": settings.yarn(trained=64, to=96),
    "llama3": settings.llama3(trained=64, to=96),
    "bands": settings.bands([1, 1, 1.2, 1.5], trained=64, to=96, attention_factor=1.1),
    "clipped": settings.clipped(trained=64, to=96),
}


@pytest.mark.parametrize("name", EACH)
def test_settings_survive_json(name):
    rope = EACH[name]
    assert msgspec.json.decode(msgspec.json.encode(rope), type=Rope) == rope


def test_parameters_are_those_of_transformers():
    before = {"rope_theta": 1e5, "rope_type": "default", "partial_rotary_factor": 0.5}
    found = EACH["yarn"].parameters(before)
    assert found == {
        "rope_theta": 1e5,
        "partial_rotary_factor": 0.5,
        "rope_type": "yarn",
        "factor": 1.5,
        "original_max_position_embeddings": 64,
        "attention_factor": pytest.approx(0.1 * math.log(1.5) + 1),
    }
    assert EACH["ntk"].parameters(before)["rope_theta"] == pytest.approx(1e4 * 1.5 ** (8 / 6))


def test_only_clipped_positions_do_not_fit_a_config():
    assert [name for name, rope in EACH.items() if not rope.fits_config] == ["clipped"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rope_type": "x"}, r"rope_type must be one of \('default', .*\), got 'x'"),
        ({"rope_type": "linear"}, "factor must be given for rope_type 'linear', got None"),
        ({"rope_type": "yarn", "factor": 2.0}, "original_max_position_embeddings must be given"),
        (
            {"rope_type": "linear", "factor": 2.0, "attention_factor": 1.1},
            "attention_factor must be left out for rope_type 'linear', which has none, got 1.1",
        ),
        ({"rope_type": "linear", "factor": -1.0}, "factor must be positive, got -1.0"),
        ({"rope_type": "default", "rope_theta": math.inf}, "rope_theta must be positive, got inf"),
        ({"rope_type": "default", "clip": 0}, "clip must be positive, got 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given, message):
    with pytest.raises(ArgumentError, match=message):
        Rope(max_position_embeddings=96, **given)
