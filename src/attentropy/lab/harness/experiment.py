"""What an experiment is: a typed configuration, units of work, tables and figures of the rows.

A unit is one seed of one condition. Its rows are flat mappings: some columns say what was measured
(rule, n, ...), the others are numbers. Means and standard deviations are taken over seeds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attentropy.lab.harness.results import RunResults

Row = dict[str, Any]


@dataclass(frozen=True)
class TableSpec:
    """A table of means over seeds.

    Attributes:
        title: printed above the table.
        metric: column of numbers to average.
        down: columns whose values name the rows of the table.
        across: column whose values name the columns of the table.
        where: columns and values that choose rows of the results.
        digits: after the point.
    """

    title: str
    metric: str
    down: tuple[str, ...]
    across: str
    where: dict[str, Any] = field(default_factory=dict)
    digits: int = 2


@dataclass(frozen=True)
class FigureSpec:
    """A figure of means over seeds, with bands of one standard deviation.

    Attributes:
        name: of the file, without its suffix.
        title: printed above the figure.
        x: column of places.
        y: column of numbers.
        by: column with one line for each of its values.
        panels: column with one panel for each of its values; None for one panel.
        where: columns and values that choose rows of the results.
        labels: of the two axes; the names of the columns if empty.
        log: axes with a logarithmic scale, "x", "y" or "xy".
        theory: column that is drawn dashed, if there is one.
        chance: level that is drawn dotted, if there is one.
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

    Attributes:
        name: as `attentropy lab` takes it.
        question: in one sentence.
        full: the configuration that conclusions rest on.
        quick: a small configuration for a first look.
        conditions: names of the conditions of a configuration.
        measure: (config, condition, seed) -> rows. One unit of work, which depends on nothing else.
        tables: what the summary shows.
        figures: what is drawn.
        conclude: says in sentences what the numbers show, computed from them.
        on: the same experiment on the real heads of a model (lab.subjects.real_heads.Given).
        derive: adds columns that compare rows with one another, before tables are made.
        reads: the same experiment on the text of a file or folder.
        kept: folder -> measure, for one whose units go on from what others left in the folder.
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
    reads: Callable[[Path], "Experiment"] | None = None
    kept: Callable[[Path], Callable[[Any, str, int], list[Row]]] | None = None
