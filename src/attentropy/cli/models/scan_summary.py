"""What a scan prints: a progress bar while it runs, the findings when it is done."""

import datetime
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import to_builtins
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from attentropy.core.language.speaking import told
from attentropy.core.notebook.words import plural
from attentropy.core.statistics import TABLE
from attentropy.models.progress import Listener
from attentropy.scans.judging import words
from attentropy.scans.schema import Scan

MINUTE = 60.0
MARKS = {"critical": "[red]▲[/]", "warning": "[yellow]◆[/]", "note": "[cyan]●[/]"}


class _Bar(Listener):
    """A bar with the time left; in a file, where it cannot be redrawn, a line every minute."""

    def __init__(self, bar: Progress) -> None:
        self.bar, self.said = bar, bar.get_time()
        self.task = bar.add_task(told("loading the model"), total=None, possible=0, condition="")

    def stage(self, text: str) -> None:
        self.bar.update(self.task, description=escape(told(text)))
        self._log()

    def begin(self, total: int) -> None:
        self.bar.reset(self.task, total=total)

    def more(self, work: int) -> None:
        self.bar.update(self.task, total=(self.bar.tasks[self.task].total or 0) + work)

    def perhaps(self, work: int, condition: str) -> None:
        self.bar.update(self.task, possible=work, condition=condition)

    def advance(self, work: int) -> None:
        self.bar.advance(self.task, work)
        self._log()

    def _log(self) -> None:
        now = self.bar.get_time()
        if self.bar.console.is_terminal or now < self.said + MINUTE:
            return
        self.said, task = now, self.bar.tasks[self.task]
        left = f" · {_clock(task.time_remaining)} {told('left')}" if task.total else ""
        said = f"{_clock(task.elapsed)} {told('elapsed')}{left}{_more(task)} · {task.description}"
        self.bar.console.print(said, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        self.bar.console.print(escape(told(text)), highlight=False)


class _Possible(ProgressColumn):
    """The time that work on a condition would take, beside the time left."""

    def render(self, task: Task) -> Text:
        return Text(_more(task).strip())


def _more(task: Task) -> str:
    """Such as " (+ 0:12:00 if it breaks past 8,192)"; nothing if no more may come."""
    possible, speed = task.fields["possible"], task.speed
    if not possible or not speed:
        return ""
    return f" (+ {_clock(possible / speed)} {told(task.fields['condition'])})"


def _clock(seconds: float | None) -> str:
    """Hours, minutes and seconds."""
    return "-:--:--" if seconds is None else str(datetime.timedelta(seconds=round(seconds)))


@contextmanager
def progress(*, quiet: bool, clock: Callable[[], float] = time.monotonic) -> Iterator[Listener]:
    """A bar on stderr with the time left; silent for `quiet`.

    Args:
        quiet: print nothing.
        clock: gives the time in seconds.
    """
    if quiet:
        yield Listener()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn(told("elapsed")),
        TextColumn("·"),
        TimeRemainingColumn(),
        TextColumn(told("left")),
        _Possible(),
    )
    # speed is that since the beginning: work is counted in what it costs, and passes are long
    options: dict[str, Any] = {
        "speed_estimate_period": 86400.0,
        "transient": True,
        "get_time": clock,
    }
    with Progress(*columns, console=Console(stderr=True), **options) as bar:
        yield _Bar(bar)


def show(scan: Scan, out: Path) -> None:
    """The summary for people.

    Args:
        scan: what was measured.
        out: the folder with its files.
    """
    console = Console()
    console.print()
    console.print(f"[bold]{escape(scan.model.name)}[/]  {told(_facts(scan))}", highlight=False)
    console.print(f"[bold]{escape(told(words.headline(scan)))}[/]", highlight=False)
    for sentence in words.sentences(scan):
        console.print(f"  {escape(told(sentence))}", highlight=False)
    console.print(_lengths(scan))
    for finding in scan.findings:
        heads = ", ".join(f"{layer}.{head}" for layer, head in finding.heads[:6])
        more = " …" if len(finding.heads) > 6 else ""
        count = plural(len(finding.heads), "head")
        text = f"{finding.name}: {count} ({heads}{more}); {finding.evidence}"
        console.print(f"{MARKS[finding.severity]} {escape(told(text))}", highlight=False)
    if scan.remedies:
        console.print(_remedies(scan))
    _offer(console, scan)
    written = {"Report: ": "report.html", "Data:   ": "scan.json", "Plan:   ": "plan.json"}
    console.print()
    for label, name in written.items():
        if name != "plan.json" or scan.plan is not None:
            line = told(label) + escape(str(out / name))
            console.print(line, highlight=False, soft_wrap=True)


def _remedies(scan: Scan) -> Table:
    """All that was tried, the best first."""
    table = Table(box=None, padding=(0, 2), header_style="dim", title_justify="left")
    table.add_column(told(f"tried at {scan.remedies[0].length:,} tokens"), overflow="fold")
    for name in ("loss past the trained length", "± error", "perplexity, all tokens", "helps"):
        table.add_column(told(name), justify="right", overflow="fold")
    for remedy in scan.remedies:
        change = remedy.change
        table.add_row(
            told(remedy.name),
            f"{change.before:.3f} → {change.after:.3f}",
            "–" if change.error is None else f"{change.error:.3f}",
            f"{remedy.perplexity_before:.3f} → {remedy.perplexity_after:.3f}",
            told("yes" if change.helps else "no"),
        )
    return table


def _offer(console: Console, scan: Scan) -> None:
    """The best remedy that helps, as lines that run where they are pasted."""
    if not scan.advice:
        if scan.remedies:
            said = "Nothing that was tried helps by two standard errors."
            console.print(told(said), highlight=False)
        return
    best = scan.advice[0]
    console.print(f"[bold green]→[/] {escape(told(best.text))}", highlight=False)
    for line in [*scan.call.splitlines()[:-1], best.call]:
        console.print(f"    [bold]{escape(line)}[/]", highlight=False, soft_wrap=True)


def machine(scan: Scan, out: Path) -> dict[str, Any]:
    """The summary for programs.

    Args:
        scan: what was measured.
        out: the folder with its files.
    """
    return {
        "complete": scan.complete,
        "scan": str(out / "scan.json"),
        "report": str(out / "report.html"),
        "plan": None if scan.plan is None else str(out / "plan.json"),
        "model": scan.model.name,
        "headline": words.headline(scan),
        "verdict": None if scan.verdict is None else to_builtins(scan.verdict),
        "trained_length": scan.model.trained_length,
        "trained_source": scan.model.trained_source,
        "special": scan.input.special,
        "warnings": scan.input.warnings,
        "heads": scan.heads,
        "healthy": scan.heads - len(words.troubled(scan)),
        "median_slope": words.median_slope(scan),
        "lengths": [
            {
                "length": measure.length,
                "median_entropy": words.median_of(measure.table("entropy")),
                "perplexity": measure.perplexity,
                "seconds": measure.seconds,
            }
            for measure in scan.measures
        ],
        "skipped": [{"length": s.length, "reason": s.reason} for s in scan.skipped],
        "findings": [
            {"name": f.name, "severity": f.severity, "heads": f.heads} for f in scan.findings
        ],
        "remedies": [
            {
                "name": r.name,
                "call": r.call,
                "length": r.length,
                "before": r.change.before,
                "after": r.change.after,
                "error": r.change.error,
                "helps": r.change.helps,
                "perplexity_before": r.perplexity_before,
                "perplexity_after": r.perplexity_after,
            }
            for r in scan.remedies
        ],
        "advice": [{"text": a.text, "call": a.call} for a in scan.advice],
    }


def _facts(scan: Scan) -> str:
    heads = scan.heads
    trained = scan.model.trained_length
    at = f", trained at {trained:,}" if trained else ""
    sizes = f"{plural(len(scan.layers), 'layer')}, {plural(heads, 'head')}"
    return f"{sizes}, {plural(scan.model.parameters, 'parameter')}{at}"


def _lengths(scan: Scan) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    shown = ("entropy", "normalized_entropy")
    medians = [f"median {TABLE[name].column}" for name in shown]
    for name in ("length", *medians, "perplexity", "seconds"):
        table.add_column(told(name), justify="right")
    for measure in scan.measures:
        cells = (
            *(words.median_of(measure.table(name)) for name in shown),
            measure.perplexity,
            measure.seconds,
        )
        printed = ["–" if cell is None else f"{cell:.3g}" for cell in cells]
        table.add_row(f"{measure.length:,}", *printed)
    return table
