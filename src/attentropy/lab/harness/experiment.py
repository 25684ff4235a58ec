"""What an experiment is: a typed configuration, units of work, tables and figures of the rows.

A unit is one seed of one condition. Its rows are flat mappings: some columns say what was measured
(rule, n, ...), the others are numbers. Means and standard deviations are taken over seeds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from attentropy.lab.harness.results import RunResults

Row = dict[str, Any]


@dataclass(frozen=True)
class TableSpec:
    """`metric` by the columns `down` (rows of the table) and `across` (its columns)."""

    title: str
    metric: str
    down: tuple[str, ...]
    across: str
    where: dict[str, Any] = field(default_factory=dict)
    digits: int = 2


@dataclass(frozen=True)
class FigureSpec:
    """`y` against `x`, one line for each value of `by`, one panel for each value of `panels`.

    Bands are one standard deviation; the column `theory`, where there is one, is drawn dashed.
    """

    name: str
    title: str
    x: str
    y: str
    by: str
    panels: str | None = None
    where: dict[str, Any] = field(default_factory=dict)
    labels: tuple[str, str] = ("", "")
    log: str = ""
    theory: str | None = None
    chance: float | None = None


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One question, and how it is answered.

    `measure(config, condition, seed)` does one unit of work and depends on nothing else;
    `conclude(results)` says in sentences what the numbers show, computed from them.
    `derive(results)` adds columns that compare rows with one another, before tables are made.
    `on(given)`, where there is one, is the same experiment with the real heads of a given model
    (attentropy.lab.subjects.real_heads.Given) in place of the embedded one.
    """

    name: str
    question: str
    full: Any
    quick: Any
    conditions: Callable[[Any], Sequence[str]]
    measure: Callable[[Any, str, int], list[Row]]
    tables: tuple[TableSpec, ...]
    figures: tuple[FigureSpec, ...]
    conclude: Callable[[RunResults], list[str]]
    on: Callable[[Any], "Experiment"] | None = None
    derive: Callable[[RunResults], RunResults] = lambda results: results
