"""additive: does LayerNorm keep the tanh of additive attention away from saturation?"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.attention.attend import attend
from attentropy.lab.harness.experiment import Experiment, FigureSpec, Row, TableSpec
from attentropy.lab.harness.results import RunResults
from attentropy.nn.layers.variants import AdditiveScore

PLAIN, NORMED = "without LayerNorm", "with LayerNorm"


@dataclass(frozen=True)
class AdditiveConfig:
    """Sets of random items; the head has to give the item that is most like the query."""

    sizes: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0)
    width: int = 16
    items: int = 16
    steps: int = 400
    batch: int = 128
    rate: float = 3e-3


class Matcher(nn.Module):
    """One additive head over items, with or without LayerNorm on its inputs."""

    def __init__(self, width: int, *, normed: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width) if normed else nn.Identity()
        self.query, self.key = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width)
        self.score = AdditiveScore(1, 4 * width)

    def forward(self, asked: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """The index logits [B,n] as weights, and the mean slope of tanh.

        Args:
            asked: [B,width].
            items: [B,n,width].
        """
        q, k = self.query(self.norm(asked))[:, None, None], self.key(self.norm(items))[:, None]
        eye = torch.eye(items.shape[1]).expand(len(items), 1, -1, -1)
        weights = attend(q, k, eye, score=self.score).out[:, 0, 0]
        return weights, (1 - (q + k).tanh().square()).mean()


def measure(config: AdditiveConfig, condition: str, seed: int) -> list[Row]:
    """Slope of tanh before and after training, and the share of right answers.

    Args:
        config: sizes of the experiment.
        condition: one of conditions(config).
        seed: of the random numbers.
    """
    rows: list[Row] = []
    for size in config.sizes:
        torch.manual_seed(seed)
        rng = torch.Generator().manual_seed(seed)
        model = Matcher(config.width, normed=condition == NORMED)
        optimiser = torch.optim.Adam(model.parameters(), config.rate)
        slopes, right = [], []
        for _ in range(config.steps):
            items = torch.randn(config.batch, config.items, config.width, generator=rng)
            wanted = torch.randint(config.items, (config.batch,), generator=rng)
            asked = items[torch.arange(config.batch), wanted]
            weights, slope = model(size * asked, size * items)
            optimiser.zero_grad()
            F.nll_loss((weights + 1e-9).log(), wanted).backward()
            optimiser.step()
            slopes.append(slope.item())
            right.append((weights.argmax(-1) == wanted).float().mean().item())
        last = slice(-max(1, config.steps // 10), None)
        rows.append({
            "size": size, "first slope": slopes[0], "slope": _mean(slopes[last]),
            "right": 100 * _mean(right[last]),
        })  # fmt: skip
    return rows


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def conclude(results: RunResults) -> list[str]:
    """Say what LayerNorm does to the slope and to the answers.

    Args:
        results: rows of a run.
    """
    lines = []
    far = max(results.values("size"))
    for metric, said in (
        ("first slope", "the mean slope of tanh at first"),
        ("right", "the share of right answers, %,"),
    ):
        plain, normed = (results.over(metric, condition=name, size=far) for name in (PLAIN, NORMED))
        lines.append(
            f"With inputs of size {far:g}, {said} is {plain.text(2)} without LayerNorm and "
            f"{normed.text(2)} with it."
        )
    return lines


def conditions(config: AdditiveConfig) -> Sequence[str]:
    """Without the norm and with it.

    Args:
        config: sizes of the experiment.
    """
    return (PLAIN, NORMED)


EXPERIMENT = Experiment(
    name="additive",
    question="Does LayerNorm keep tanh in additive attention unsaturated, and does that help?",
    full=AdditiveConfig(),
    quick=AdditiveConfig(steps=60, sizes=(1.0, 30.0)),
    conditions=conditions,
    measure=measure,
    tables=(
        TableSpec("Mean slope of tanh at initialisation, by the size of the inputs", "first slope",
                  ("condition",), "size", digits=3),
        TableSpec("The same after training", "slope", ("condition",), "size", digits=3),
        TableSpec("Right answers, %", "right", ("condition",), "size", digits=1),
    ),
    figures=(
        FigureSpec("right", "Additive attention by the size of its inputs", "size", "right",
                   "condition", labels=("size of the inputs", "right, %"), log="x"),
    ),
    conclude=conclude,
)  # fmt: skip
