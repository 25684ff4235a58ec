"""A run in Markdown: what was run, the results (mean ± standard deviation), what they show."""

from pathlib import Path
from typing import Any

from attentropy.lab.harness.experiment import Experiment, TableSpec
from attentropy.lab.harness.results import RunResults
from attentropy.lab.subjects.real_heads import EMBEDDED


def summary(
    experiment: Experiment,
    results: RunResults,
    about: dict[str, Any],
    *,
    level: int = 1,
    at: str = "",
) -> str:
    """A run as Markdown.

    Args:
        experiment: what was run.
        results: rows of a run.
        about: what RunFolder.about() gave.
        level: of the headings.
        at: what precedes the names of figures in links.
    """
    mark = "#" * level
    parts = [
        f"{mark} {title(experiment, about)}",
        experiment.question,
        ran(about),
        bullets(experiment, results),
        *tables(experiment, results),
        *figures(experiment, at=at),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def title(experiment: Experiment, about: dict[str, Any]) -> str:
    """The name of an experiment, the model if one was given, and whether its run was a quick one.

    Args:
        experiment: what was run.
        about: what RunFolder.about() gave.
    """
    model = given_model(about)
    own = f", {model}" if model else ""
    return f"{experiment.name}{own}{' (quick run)' if about['quick'] else ''}"


def given_model(about: dict[str, Any]) -> str:
    """The name of the model that a run was given; "" if it has none, or took the embedded one.

    Args:
        about: what RunFolder.about() gave.
    """
    name = str(about["config"].get("model", EMBEDDED))
    return "" if name == EMBEDDED else Path(name.partition(" on ")[0]).name


def bullets(experiment: Experiment, results: RunResults) -> str:
    """What the run shows, as a list.

    Args:
        experiment: what was run.
        results: rows of a run.
    """
    return "\n".join(f"- {line}" for line in experiment.conclude(results))


def tables(experiment: Experiment, results: RunResults) -> list[str]:
    """The tables of a run, those for which there are numbers.

    Args:
        experiment: what was run.
        results: rows of a run.
    """
    derived = experiment.derive(results)
    return [f"**{t.title}**\n\n{markdown(t, derived)}" for t in _filled(experiment, derived)]


def figures(experiment: Experiment, *, at: str = "") -> list[str]:
    """Links to the figures of a run.

    Args:
        experiment: what was run.
        at: what precedes the names of figures in links.
    """
    return [f"![{f.title}]({at}{f.name}.png)" for f in experiment.figures]


def _filled(experiment: Experiment, results: RunResults) -> list[TableSpec]:
    """The tables for which there are numbers."""
    return [t for t in experiment.tables if results.where(**t.where).values(t.metric)]


def ran(about: dict[str, Any]) -> str:
    """Command, machine, date and versions in one paragraph.

    Args:
        about: what RunFolder.about() gave.
    """
    m = about["machine"]
    kind = "quick configuration" if about["quick"] else "full configuration"
    seeds = _seeds(about["seeds"])
    done, all_units = about["units"]
    part = "" if done == all_units else f", **incomplete: {done} of {all_units} units**"
    settings = ", ".join(f"{k} = {_plain(v)}" for k, v in about["config"].items())
    return (
        f"Run: `{about['command']}` ({kind}, {seeds}{part}) on {m['date']}, {m['cpu']}, "
        f"{m['threads']} thread{'s' if m['threads'] != 1 else ''}, torch {m['torch']}, "
        f"attentropy {about['attentropy']}. Settings: {settings}. "
        "Numbers are mean ± standard deviation over seeds."
    )


def _seeds(given: int | list[int]) -> str:
    """3 seeds, or the seeds that were named."""
    if isinstance(given, int):
        return f"{given} seed{'s' if given > 1 else ''}"
    return f"seed{'s' if len(given) > 1 else ''} {', '.join(map(str, given))}"


def markdown(table: TableSpec, results: RunResults) -> str:
    """A table of means and standard deviations.

    Args:
        table: what to show.
        results: rows of a run.
    """
    rows = results.where(**table.where)
    columns = rows.values(table.across)
    if not any(isinstance(column, str) for column in columns):
        columns = sorted(columns)
    head = [*table.down, *(f"{table.across} {c}" for c in columns)]
    lines = [" | ".join(head), " | ".join(["---"] * len(table.down) + ["--:"] * len(columns))]
    for key in dict.fromkeys(tuple(row.get(name) for name in table.down) for row in rows):
        chosen = dict(zip(table.down, key, strict=True))
        cells = [rows.over(table.metric, **chosen, **{table.across: c}) for c in columns]
        if any(cell.size for cell in cells):
            lines.append(" | ".join([*map(str, key), *(c.text(table.digits) for c in cells)]))
    return "\n".join(f"| {line} |" for line in lines)


def _plain(value: Any) -> str:
    return "/".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
