"""An experiment that costs nothing, to test the frame with."""

from dataclasses import dataclass

import torch

from attentropy.lab.harness.experiment import Experiment, FigureSpec, TableSpec


@dataclass(frozen=True)
class Config:
    lengths: tuple[int, ...] = (2, 4)
    conditions: tuple[str, ...] = ("a/b", "c d")


def measure(config, condition, seed):
    return [
        {"rule": condition, "n": n, "h": torch.rand(()).item() + n, "theory": float(n)}
        for n in config.lengths
    ] + [{"rule": condition, "n": 8, "h": float("nan")}]


TOY = Experiment(
    name="toy",
    question="What does it cost?",
    full=Config(),
    quick=Config(lengths=(2,)),
    conditions=lambda config: config.conditions,
    measure=measure,
    tables=(TableSpec("H", "h", ("rule",), "n", digits=3),),
    figures=(FigureSpec("h", "H", "n", "h", "rule", panels="condition", log="x", theory="theory"),),
    conclude=lambda results: [f"{len(results)} rows."],
)
