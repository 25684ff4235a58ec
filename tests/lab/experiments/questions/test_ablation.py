import torch

from attentropy.lab.experiments.questions import ablation
from attentropy.lab.harness.results import RunResults

SMALL = ablation.AblationConfig(
    steps=1, tokens=128, tested=(64, 128), windows=2, width=16, heads=2, layers=1,
    rules=("1/sqrt d", "log n/d"),
)  # fmt: skip


def test_lengths_of_training_span_the_range():
    rng = torch.Generator().manual_seed(0)
    drawn = [ablation._length(SMALL, rng) for _ in range(300)]
    assert min(drawn) >= 16
    assert max(drawn) <= 128
    assert sum(n < 45 for n in drawn) > 100


def test_rows_and_conclusion():
    rows = [
        {**row, "condition": rule, "seed": 0}
        for rule in ablation.conditions(SMALL)
        for row in ablation.measure(SMALL, rule, 0)
    ]
    assert {row["n"] for row in rows if "n" in row} == {64, 128}
    assert ablation.conclude(RunResults(rows))[0].startswith(
        "The loss at 128 bytes in nats, least first:"
    )
