"""Draw the figures of an experiment. matplotlib is imported here only."""

from pathlib import Path
from typing import Any

from attentropy.lab.harness.experiment import FigureSpec
from attentropy.lab.harness.results import RunResults

# Okabe and Ito's colours, told apart by every kind of eye; then the same with other marks
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#888888")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "<")
_STYLE = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.5,
    "lines.markersize": 3.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
}


def draw(figure: FigureSpec, results: RunResults, path: Path) -> None:
    """Write the figure to `path`.

    Args:
        figure: what to draw.
        results: rows of a run.
        path: of the picture.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    rows = results.where(**figure.where)
    panels = [None] if figure.panels is None else rows.values(figure.panels)
    across = min(len(panels), 4)
    down = -(-len(panels) // across)
    with matplotlib.rc_context(_STYLE):
        canvas = Canvas(figsize=(2.7 * across + 2.3, 2.6 * down + 0.6), layout="constrained")
        FigureCanvasAgg(canvas)
        axes = canvas.subplots(down, across, sharey=True, squeeze=False).flatten()
        for axis, panel in zip(axes, panels, strict=False):
            chosen = rows if panel is None else rows.where(**{str(figure.panels): panel})
            _panel(axis, figure, chosen, lines=rows.values(figure.by))
            axis.set_title(_panel_title(figure, panel), loc="left")
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
        _furnish(canvas, axes[: len(panels)], figure, across)
        canvas.savefig(path, dpi=160, metadata={"Software": None})


def _panel_title(figure: FigureSpec, panel: Any) -> str:
    if panel is None:
        return ""
    return panel if isinstance(panel, str) and len(panel) > 3 else f"{figure.panels} = {panel}"


def _panel(axis: Any, figure: FigureSpec, rows: RunResults, *, lines: list[Any]) -> None:
    for i, line in enumerate(lines):
        chosen = rows.where(**{figure.by: line})
        x, y = chosen.curve(figure.x, figure.y)
        if not x:
            continue
        colour, mark = PALETTE[i % len(PALETTE)], MARKS[(i + i // len(PALETTE)) % len(MARKS)]
        mean = [s.mean for s in y]
        label = line if isinstance(line, str) else f"{figure.by} {line}"
        axis.plot(x, mean, color=colour, marker=mark, label=label)
        if all(s.size > 1 for s in y):
            low, high = ([s.mean + sign * s.sd for s in y] for sign in (-1, 1))
            axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        if figure.theory:
            x, y = chosen.curve(figure.x, figure.theory)
            axis.plot(x, [s.mean for s in y], color=colour, linestyle="--", linewidth=1.0)
    if figure.chance is not None:
        axis.axhline(figure.chance, color="#666666", linewidth=0.8, linestyle=":")
    if "x" in figure.log:
        axis.set_xscale("log", base=2)
        _plain_ticks(axis, sorted(rows.values(figure.x)))
    if "y" in figure.log:
        axis.set_yscale("log")


def _plain_ticks(axis: Any, places: list[Any]) -> None:
    """At most six lengths, written out."""
    from matplotlib.ticker import NullLocator

    places = [p for p in places if p > 0]
    step = max(1, -(-len(places) // 6))
    shown = places[::step]
    axis.set_xticks(shown, [f"{p:g}" for p in shown])
    axis.xaxis.set_minor_locator(NullLocator())


def _furnish(canvas: Any, axes: Any, figure: FigureSpec, across: int) -> None:
    for i, axis in enumerate(axes):
        if i + across >= len(axes):
            axis.set_xlabel(figure.labels[0] or figure.x)
        if i % across == 0:
            axis.set_ylabel(figure.labels[1] or figure.y)
    handles: dict[str, Any] = {}
    for axis in axes:
        handles.update(
            {label: h for h, label in zip(*axis.get_legend_handles_labels(), strict=True)}
        )
    title = figure.title + (" (dashed: theory)" if figure.theory else "")
    canvas.suptitle(title, fontsize=10, x=0.01, ha="left")
    if len(handles) > 1:
        canvas.legend(handles.values(), handles.keys(), loc="outside right center")
