"""A made-up training run that loses a head, for tests of the report only."""

import math
import random
from pathlib import Path

from attentropy.training.alarms import Alert
from attentropy.training.metrics import Metrics
from attentropy.training.runstore import RunStore, StoredRun
from tests.rows import head_row


def make_run(
    *, layers: int = 6, heads: int = 8, samples: int = 60, every: int = 50, name: str = "pilot"
) -> StoredRun:
    rng = random.Random(1)
    tilt = [[rng.random() for _ in range(heads)] for _ in range(layers)]
    steps = [every * i for i in range(samples)]

    def entropy(step: int, layer: int, head: int) -> float:
        fall = 1 - math.exp(-step / 900)
        collapse = 0.8 * max(0.0, (step - 1800) / 1200) if (layer, head) in BAD else 0.0
        return max(0.02, 0.95 - (0.3 + 0.4 * tilt[layer][head]) * fall - collapse)

    def table(function):
        return [[[function(s, l, h) for h in range(heads)] for l in range(layers)] for s in steps]

    share = table(entropy)
    logit = table(lambda s, l, h: 2 + 6 * tilt[l][h] * s / 3000 + (s / 240 if (l, h) in BAD else 0))
    losses = [
        (s, 5.5 * math.exp(-s / 700) + 2.1 + 0.05 * rng.random() + max(0, s - 2600) / 500)
        for s in range(0, steps[-1] + 1, 10)
    ]
    return StoredRun(
        name=name,
        path=Path(f"{name}.db"),
        running=False,
        kinds=["self"] * layers,
        notes={},
        layers=[f"blocks.{l}.attention" for l in range(layers)],
        heads=[heads] * layers,
        steps=steps,
        metrics={
            "entropy": [[[6 * h for h in row] for row in t] for t in share],
            "normalized_entropy": share,
            "max_logit": logit,
        },
        losses=losses,
        alerts=[
            Alert(1900, "logit growth", "warning", BAD, "passes 20 at about step 2,900"),
            Alert(2350, "entropy collapse", "critical", BAD, "normalised entropy below 0.05"),
        ],
        started="2026-01-02T03:04:05Z",
    )


BAD = ((2, 3), (4, 1))


def write_run(path, run: StoredRun) -> None:
    """Store the made-up run as a Monitor would."""
    store = RunStore(path)
    for i, step in enumerate(run.steps):
        rows = [
            head_row(
                head,
                layer=name,
                index=layer,
                heads=heads,
                **{key: tables[i][layer][head] for key, tables in run.metrics.items()},
            )
            for layer, (name, heads) in enumerate(zip(run.layers, run.heads, strict=True))
            for head in range(heads)
        ]
        alerts = [alert for alert in run.alerts if alert.step == step]
        store(Metrics({}, rows=rows, alerts=alerts), step)
    for step, loss in run.losses:
        store.loss(step, loss)
    store.close()
