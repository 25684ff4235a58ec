"""How each table is drawn. Colours are Okabe and Ito's, safe for colour-blind readers."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from attentropy.report.curves import tables
from attentropy.report.curves.tables import Table

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY = "#666666"
_STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "attentropy",
    "svg.fonttype": "none",
}


def save(
    draw: Callable[[Any, Table], None], table: Table, title: str, paths: Iterable[Path]
) -> None:
    """Draw on a fresh axis and write it to every path, the format following the ending.

    Args:
        draw: draws a table on an axis.
        table: the numbers.
        title: stands above the axis.
        paths: the files.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(5.6, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        axis = figure.add_subplot()
        draw(axis, table)
        axis.set_title(title, loc="left")
        for path in paths:
            dated = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(path, dpi=200, metadata=dated)


def _columns(table: Table, prefix: str) -> list[str]:
    return [name for name in table if name.startswith(prefix)]


def _lines(axis: Any, table: Table, names: Iterable[str], label: Callable[[str], str]) -> None:
    x = next(iter(table.values()))
    for name, colour in zip(names, PALETTE, strict=False):
        axis.plot(x, table[name], color=colour, label=label(name))


def _beta(name: str) -> str:
    return rf"$\beta = {name.removeprefix('beta=')}$"


def _size(name: str) -> str:
    value = int(name.removeprefix("n="))
    power = round(np.log10(value))
    return rf"$n = 10^{{{power}}}$" if value == 10**power else f"$n = {value}$"


def relu2(axis: Any, table: Table) -> None:
    """S against gamma; every curve ends at 1/sqrt 6."""
    _lines(axis, table, _columns(table, "beta"), _beta)
    axis.annotate(r"$1/\sqrt{6}$", (5, 6**-0.5), (5.05, 6**-0.5), va="center", color=GREY)
    axis.set(xlabel=r"score spread $\gamma = \sigma\,\|q\|$", ylim=(0, 1.02), xlim=(0, 5))
    _right_legend(axis, r"sparsity $S$ (small = sparse)")


def _right_legend(axis: Any, ylabel: str) -> None:
    axis.set_ylabel(ylabel)
    axis.legend(loc="center left", bbox_to_anchor=(1.1, 0.5))


def identity(axis: Any, table: Table) -> None:
    """S against gamma; it never falls below sqrt(2/pi)."""
    _lines(
        axis,
        table,
        _columns(table, "beta"),
        lambda name: _beta(name).replace("= ", r"= \pm").replace(r"\pm0$", "0$"),
    )
    axis.axhline((2 / np.pi) ** 0.5, color=GREY, lw=0.9, ls=":")
    axis.annotate(r"floor $\sqrt{2/\pi}$", (0.1, 0.792), va="top", color=GREY)
    axis.set(xlabel=r"score spread $\gamma = \sigma\,\|q\|$", ylim=(0.75, 1.01), xlim=(0, 5))
    axis.set_ylabel(r"sparsity $S$ (small = sparse)")
    axis.legend(loc="upper right")


def decay(axis: Any, table: Table) -> None:
    """S against n, and the floor that one key alone would have."""
    _lines(
        axis, table, _columns(table, "rate"), lambda n: rf"$\lambda = {n.removeprefix('rate=')}$"
    )
    axis.plot(table["n"], table["floor"], color=GREY, ls=":", label=r"floor $1/\sqrt{n}$")
    axis.set(xscale="log", yscale="log", xlabel="keys $n$", ylabel=r"sparsity $S$ (small = sparse)")
    axis.legend(loc="lower left")


def exponential(axis: Any, table: Table) -> None:
    """S against gamma: the population curve and rows of n keys that stop at 1/sqrt n."""
    axis.plot(table["gamma"], table["population"], color="black", ls="--", label=r"$n \to \infty$")
    _lines(axis, table, _columns(table, "n="), _size)
    for name, colour in zip(_columns(table, "n="), PALETTE, strict=False):
        floor = int(name.removeprefix("n=")) ** -0.5
        axis.axhline(floor, color=colour, lw=0.8, ls=":")
    axis.set(yscale="log", ylim=(4e-3, 1.2), xlim=(0, 8), xlabel=r"score spread $\gamma$")
    axis.set_ylabel(r"sparsity $S$ (small = sparse)")
    axis.annotate(r"dotted: floor $1/\sqrt{n}$", (0.2, 0.0075), va="top", color=GREY)
    axis.legend(loc="upper right")


def entropy_spread(axis: Any, table: Table) -> None:
    """Exact entropy, the annealed parabola dashed, and the boundary where rows freeze."""
    x = table["spread"]
    names = _columns(table, "n=")
    _lines(axis, table, names, _size)
    for name, colour in zip(names, PALETTE, strict=False):
        line = table[f"annealed {name}"]
        axis.plot(x[line > 0], line[line > 0], color=colour, ls="--", lw=0.9)
    edge = tables.freezing(tuple(int(size) for size in np.logspace(1, 9, 60)))
    axis.plot(edge["spread"], edge["entropy"], color="black", lw=1.2, ls="-.")
    axis.annotate(r"freezing $x=\sqrt{2\log n}$", (6.6, 4.75), color="black")
    axis.plot([], [], color=GREY, ls="--", lw=0.9, label=r"$\log n - x^2/2$")
    axis.set(
        xlabel=r"spread $x$ of the scaled scores", ylabel="expected entropy (nats)", xlim=(0, 10)
    )
    axis.set_ylim(0, 14.5)
    axis.legend(loc="upper right")


def heat_capacity(axis: Any, table: Table) -> None:
    """Exact heat capacity for each n, and the jump that it becomes."""
    x = table["x/x_c"]
    _lines(axis, table, _columns(table, "n="), _size)
    axis.plot(x, table["limit"], color="black", lw=1.0, ls="--", label=r"$n\to\infty$")
    axis.set(
        xlabel=r"spread over the freezing spread, $x/\sqrt{2\log n}$",
        ylabel=r"expected varentropy $/\log n$",
        xlim=(0, 3),
    )
    axis.legend(loc="upper right")


_RULES = {
    "constant": "constant scale",
    "sqrt_log": r"scale $\propto\sqrt{\log n}$",
    "log": r"scale $\propto\log n$",
    "hold": r"$\sqrt{x_0^2+2\log(n/n_0)}$",
    "exact": "exact inversion",
}


def entropy_length(axis: Any, table: Table) -> None:
    """Entropy under each rule; all meet at the reference length."""
    axis.plot(table["n"], table["log n"], color=GREY, ls=":", label=r"uniform, $\log n$")
    _lines(axis, table, _RULES, _RULES.__getitem__)
    axis.axvline(1024, color=GREY, lw=0.8)
    axis.annotate("$n_0 = 1024$,\n$x_0 = 2$", (1150, 0.35), color=GREY)
    axis.set(xlabel="keys $n$", ylabel="expected entropy (nats)", ylim=(0, 14.5))
    axis.set_xscale("log", base=2)
    axis.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))


def worst_deficit(axis: Any, table: Table) -> None:
    """D(2/tau), with tau = 1 and tau = 0.07 marked."""
    tau = table["tau"]
    axis.plot(tau, table["deficit"], color=PALETTE[0], label=r"$D(2/\tau)$")
    axis.plot(tau, table["R^2/8"], color=PALETTE[1], ls="--", lw=1, label="$R^2/8$")
    large = tau < 1.9
    axis.plot(
        tau[large],
        table["R-1-log R"][large],
        color=PALETTE[2],
        ls="-.",
        lw=1,
        label=r"$R-1-\log R$",
    )
    marks = (
        (0.07, r"$\tau = 0.07$: 24.22", (0.0135, 9.0)),
        (1.0, r"$\tau = 1$: 0.4745", (1.2, 0.7)),
    )
    for at, text, place in marks:
        height = float(np.interp(at, tau, table["deficit"]))
        axis.plot([at], [height], "o", color="black", ms=4)
        axis.annotate(text, (at, height), place, color="black")
    axis.set(xscale="log", yscale="log", ylim=(3e-3, 1e3), xlim=(0.01, 10))
    axis.set(
        xlabel=r"temperature $\tau$ of cosine scores ($R = 2/\tau$)", ylabel="worst deficit (nats)"
    )
    axis.legend(loc="lower left")


def noise_error(axis: Any, table: Table) -> None:
    """Measured error as points, prediction as lines; the heavy law misses the slope."""
    n = table["n"]
    for (kind, scale), colour, mark in zip(tables.LAWS, PALETTE, "osD^", strict=False):
        name = f"{kind} {scale:g}"
        fit = np.polyfit(np.log(n[4:]), np.log(table[name][4:]), 1)[0]
        label = f"{_law(kind, scale)}: slope ${fit:.2f}$"
        axis.plot(n, table[name], mark, color=colour, ms=4, label=label)
        axis.plot(n, table[f"{name} predicted"], color=colour, lw=1)
    axis.plot(n, 0.35 * (n / n[0]) ** -0.5, color=GREY, ls="--", lw=1, label=r"slope $-1/2$")
    axis.set(
        xscale="log", yscale="log", xlabel="keys $n$", ylabel="rms output error (units of $v$)"
    )
    axis.legend(loc="lower left")


def _law(kind: str, scale: float) -> str:
    symbol = {"gaussian": r"\sigma", "uniform": "a", "laplace": "b"}[kind]
    return rf"{kind.capitalize()} ${symbol}={scale:g}$"


def gradient_flow(axis: Any, table: Table) -> None:
    """E[1 - sum p^2] against the normalised entropy."""
    _lines(axis, table, _columns(table, "n="), _size)
    axis.set(xlabel=r"normalised entropy $H/\log n$", xlim=(0, 1), ylim=(0, 1.02))
    axis.set_ylabel(r"gradient flow $1-\sum p^2$")
    axis.legend(loc="lower right")


def position_amplitude(axis: Any, table: Table) -> None:
    """Normalised entropy (solid) and the mass on the own position (dashed)."""
    x = table["amplitude"]
    for name, colour in (("no content", PALETTE[0]), ("content", PALETTE[1])):
        axis.plot(x, table[f"entropy, {name}"], color=colour, label=rf"$H/\log n$, {name}")
        own = table[f"own position, {name}"]
        axis.plot(x, own, color=colour, ls="--", label=f"mass on own position, {name}")
    axis.set(xscale="log", xlabel="amplitude of the position vectors (content entries: 1/√2)")
    axis.set(ylabel="share", ylim=(0, 1.02), xlim=(0.01, 10))
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
