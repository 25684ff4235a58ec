"""The list of experiments: names and files; a file is imported when it is used."""

import difflib
from importlib import import_module

from attentropy.core.errors import ArgumentError
from attentropy.lab.harness.experiment import Experiment

HOMES = {
    "extrapolate/max-retrieval": "retrieval",
    "extrapolate/language": "language",
    "extrapolate/words": "contexts.words",
    "extrapolate/vision": "vision",
    "noise": "noise",
    "init": "init",
    "scales": "scales",
    "positions": "positions",
    "sparsity": "sparsity",
    "stability": "stability",
    "alarms": "alarms",
    "dynamics": "dynamics",
    "extend": "contexts.extend",
    "clusters": "questions.clusters",
    "weightings": "questions.weightings",
    "bottleneck": "questions.bottleneck",
    "additive": "questions.additive",
    "generalise": "questions.generalise",
    "ablation": "questions.ablation",
    "crossing": "questions.crossing",
}  # name -> file of attentropy.lab.experiments


def find(name: str) -> Experiment:
    """The experiment of that name; raises ArgumentError with the nearest name if there is none.

    Args:
        name: as `attentropy lab list` prints it.
    """
    if name not in HOMES:
        raise ArgumentError("experiment", f"{_nearest(name)} of {', '.join(HOMES)}", repr(name))
    module = import_module(f"attentropy.lab.experiments.{HOMES[name]}")
    found: Experiment = module.EXPERIMENT
    return found


def _nearest(name: str) -> str:
    short = {known.rsplit("/", 1)[-1]: known for known in HOMES}
    near = difflib.get_close_matches(name, [*HOMES, *short], n=1, cutoff=0.4)
    return f"one (did you mean {short.get(near[0], near[0])!r}?)" if near else "one"


def all_experiments() -> list[Experiment]:
    """Every experiment, in the order of the list."""
    return [find(name) for name in HOMES]
