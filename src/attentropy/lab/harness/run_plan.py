"""What is run: an experiment, its configuration and the seeds. Stored beside the results."""

import json
import shlex
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from attentropy._version import __version__
from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.lab.harness.experiment import Experiment


class Unit(NamedTuple):
    """One seed of one condition."""

    condition: str
    seed: int

    @property
    def name(self) -> str:
        """Name of the unit's file, without its suffix."""
        plain = "".join(c if c.isalnum() or c in "-.=" else "_" for c in self.condition)
        return f"{plain}-seed{self.seed}"


@dataclass(frozen=True)
class RunPlan:
    """An experiment with its configuration and seeds.

    Attributes:
        experiment: what is measured.
        quick: takes the small configuration.
        seeds: number of seeds, from 0 on, or the seeds themselves.
        options: further words of the command line that runs it.
    """

    experiment: Experiment
    quick: bool = False
    seeds: int | tuple[int, ...] = 3
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.seeds, tuple):
            _check_named(self.seeds)
        elif isinstance(self.seeds, bool) or not isinstance(self.seeds, int):
            raise ArgumentTypeError("seeds", "an integer or a tuple of them", repr(self.seeds))
        elif self.seeds < 1:
            raise ArgumentError("seeds", ">= 1", self.seeds)

    @property
    def named_seeds(self) -> tuple[int, ...]:
        """The seeds, in the order of the run."""
        return self.seeds if isinstance(self.seeds, tuple) else tuple(range(self.seeds))

    @property
    def config(self) -> Any:
        """The configuration, quick or full."""
        return self.experiment.quick if self.quick else self.experiment.full

    def units(self) -> list[Unit]:
        """All units, condition by condition, so that an interrupted run has error bars."""
        conditions = self.experiment.conditions(self.config)
        return [Unit(condition, seed) for condition in conditions for seed in self.named_seeds]

    def record(self) -> dict[str, Any]:
        """Everything that decides the numbers, in JSON types."""
        about = {
            "experiment": self.experiment.name,
            "quick": self.quick,
            "seeds": self.seeds,
            "attentropy": __version__,
            "config": asdict(self.config),
        }
        stored: dict[str, Any] = json.loads(json.dumps(about))
        return stored

    def command(self) -> str:
        """The command line that runs the plan."""
        quick = " --quick" if self.quick else ""
        more = "".join(f" {word}" for word in map(shlex.quote, self.options))
        # one seed that is named needs a comma, or it would be a number of seeds
        named = ",".join(map(str, self.named_seeds)) + ("," if len(self.named_seeds) == 1 else "")
        seeds = named if isinstance(self.seeds, tuple) else str(self.seeds)
        return f"attentropy lab {self.experiment.name}{quick} --seeds {seeds}{more}"


def _check_named(seeds: tuple[int, ...]) -> None:
    """Raise unless these are different integers from 0 on."""
    if any(isinstance(seed, bool) or not isinstance(seed, int) for seed in seeds):
        raise ArgumentTypeError("seeds", "an integer or a tuple of them", repr(seeds))
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise ArgumentError("seeds", "different numbers >= 0, at least one", seeds)
