"""The damage is split as it was put together, and named."""

import pytest
import torch

from attentropy.core.errors import ArgumentError
from attentropy.lab.embedded import load_embedded, sample_bytes
from attentropy.models.losses.breaking import judged_tokens, why_it_breaks
from models.losses.diseases import TRAINED, Orderly, Sick, text


@pytest.mark.parametrize(
    ("distance", "dilution", "name", "words"),
    [(0.5, 0.0, "distance", "Distance is the cause, not the number of keys"),
     (0.0, 0.5, "dilution", "Dilution is the cause (the number of keys), not distance"),
     (0.5, 0.4, "both", "Distance and the number of keys are both causes"),
     (0.0, 0.0, "none", "Nothing breaks"),
     (0.01, 0.0, "none", "Nothing breaks")],
)  # fmt: skip
def test_the_disease_is_named(distance, dilution, name, words):
    model = Sick(distance=distance, dilution=dilution)
    found = why_it_breaks(model, text(5, 160), trained=TRAINED)
    assert found.name == name
    assert found.sentence.startswith(words)
    assert found.damage.difference == pytest.approx(distance + dilution, abs=1e-4)
    assert found.distance.difference == pytest.approx(distance, abs=1e-4)
    assert found.dilution.difference == pytest.approx(dilution, abs=1e-4)
    assert (found.probe, found.missing, len(found.gaps)) == ("clipped", "", 3)


def test_the_embedded_model_is_diluted():
    ids = torch.tensor(list(sample_bytes()[: 4 * 1024])).view(4, 1024)
    found = why_it_breaks(load_embedded(), ids, trained=128)
    assert found.name == "dilution"
    assert found.probe == "thinned"
    assert found.missing.startswith(
        "There is no distance probe, because the model takes no position_ids"
    )
    assert found.gaps == []


def test_the_end_that_is_judged():
    assert judged_tokens(Sick(), 12288, 8192) == 1024
    assert judged_tokens(Sick(), 1024, 128) == 64
    assert judged_tokens(Sick(), 65, 64) == 1
    assert judged_tokens(Orderly(), 1024, 128) == 256


def test_a_short_text_is_refused():
    with pytest.raises(ArgumentError, match="tokens must be longer than the trained length 64"):
        why_it_breaks(Sick(), text(2, 64), trained=TRAINED)
