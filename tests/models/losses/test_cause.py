import pytest

from attentropy.models.losses.cause import Cause
from attentropy.models.losses.paired import Paired


def cause(name, distance, dilution):
    def change(by):
        return Paired(before=3.0, after=3.0 + by, error=0.01, texts=8)

    return Cause(
        name=name,
        length=12_288,
        trained=8_192,
        damage=change(distance + dilution),
        distance=change(distance),
        dilution=change(dilution),
        probe="clipped",
    )


@pytest.mark.parametrize(
    ("name", "distance", "dilution", "words"),
    [
        ("distance", 1.0, 0.0, "Distance is the cause, not the number of keys"),
        ("dilution", 0.0, 1.0, "Dilution is the cause (the number of keys), not distance"),
        ("both", 0.5, 0.5, "Distance and the number of keys are both causes"),
        ("none", 0.0, 0.0, "Nothing breaks"),
    ],
)
def test_the_cause_is_one_sentence(name, distance, dilution, words):
    said = cause(name, distance, dilution).sentence
    assert said.startswith(words)
    assert said.endswith(".")
    assert "8,192" in said or "+1.00" in said
