"""Static figures of the theory: PNG and SVG for the paper, CSV with the numbers beside them.

Needs matplotlib (`pip install attentropy[figures]`), imported only when a figure is drawn.
"""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentropy.report.curves import plots, tables
from attentropy.report.curves.tables import Table


@dataclass(frozen=True)
class TheoryFigure:
    """A file name, what it shows, its numbers, and how they are drawn on an axis."""

    name: str
    title: str
    table: Callable[[], Table]
    draw: Callable[[Any, Table], None]


FIGURES: dict[str, TheoryFigure] = {
    figure.name: figure
    for figure in (
        TheoryFigure(
            "sparsity_relu2", "Sparsity of squared-ReLU attention", tables.relu2, plots.relu2
        ),
        TheoryFigure(
            "sparsity_identity", "Sparsity of linear scores", tables.identity, plots.identity
        ),
        TheoryFigure("sparsity_decay", "Sparsity of geometric decay", tables.decay, plots.decay),
        TheoryFigure(
            "sparsity_exp", "Sparsity of exp attention", tables.exponential, plots.exponential
        ),
        TheoryFigure(
            "entropy_spread", "Entropy and freezing", tables.entropy_spread, plots.entropy_spread
        ),
        TheoryFigure(
            "heat_capacity", "Varentropy and freezing", tables.heat_capacity, plots.heat_capacity
        ),
        TheoryFigure(
            "entropy_length",
            "Entropy under scale rules",
            tables.entropy_length,
            plots.entropy_length,
        ),
        TheoryFigure(
            "worst_deficit", "Worst-case deficit", tables.worst_deficit, plots.worst_deficit
        ),
        TheoryFigure(
            "noise_error", "Output error under score noise", tables.noise_error, plots.noise_error
        ),
        TheoryFigure(
            "gradient_flow", "Gradient flow and entropy", tables.gradient_flow, plots.gradient_flow
        ),
        TheoryFigure(
            "position_amplitude",
            "Positional collapse",
            tables.position_amplitude,
            plots.position_amplitude,
        ),
    )
}
"""Every figure by name."""


def write(figure: TheoryFigure, folder: Path) -> list[Path]:
    """Draw one figure into `folder`; the paths of its PNG, SVG and CSV.

    Args:
        figure: what to draw.
        folder: where the files go.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table = figure.table()
    paths = [folder / f"{figure.name}.{ending}" for ending in ("png", "svg", "csv")]
    plots.save(figure.draw, table, figure.title, paths[:2])
    with paths[2].open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        rows = zip(*table.values(), strict=True)
        writer.writerows([f"{value:.10g}" for value in row] for row in rows)
    return paths
