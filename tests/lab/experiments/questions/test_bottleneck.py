import pytest

from attentropy.lab.experiments.questions import bottleneck
from attentropy.lab.harness.results import RunResults


def test_the_loss_is_least_where_weights_are_the_posterior():
    config = bottleneck.BottleneckConfig(factors=(0.5, 1.0, 2.0), signals=(3.0,))
    rows = bottleneck.measure(config, "signal 3", 0)
    losses = {row["factor"]: row["loss"] for row in rows}
    assert min(losses, key=losses.get) == 1.0
    first = rows[0]
    assert first["objective 4"] == pytest.approx(first["entropy"] - 4 * first["gained"])
    said = bottleneck.conclude(
        RunResults({**row, "condition": "signal 3", "seed": 0} for row in rows)
    )
    assert said[0].startswith("signal 3: the loss is least at 1 times the ideal scale")
