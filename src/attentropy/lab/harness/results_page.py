"""The results page, written from committed runs only.

    python -m attentropy.lab.harness.results_page RUNS PAGE

RUNS is a directory of runs (docs/results); PAGE the Markdown file to write (docs/results.md), which
links the figures where they lie. Beside the results of a run a file answer.txt says in a sentence
or two what was found, and a file remarks.txt what has changed since. Every number of an answer
stands in the conclusions or tables of its run; a test says so.
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from attentropy.lab.harness.experiment import Experiment
from attentropy.lab.harness.registry import HOMES, find
from attentropy.lab.harness.results import RunResults
from attentropy.lab.harness.run_folder import RESULTS
from attentropy.lab.harness.summary import bullets, figures, ran, tables, title

REMARKS = "remarks.txt"
ANSWER = "answer.txt"

HEAD = """# Results of the lab

Written by `python -m attentropy.lab.harness.results_page {runs} {page}` from what is in
`{runs}`; do not edit. Each experiment is one command, `attentropy lab NAME`; numbers in the
sentences are computed from the same files as the tables. Results that speak against an expectation
are kept. Runs marked *quick* used the small configuration that continuous integration runs: they
show the method, and their numbers are rough. Errors are standard deviations over seeds unless a
sentence says otherwise.

| experiment | question | answer | command |
|---|---|---|---|
"""


class PublishedRun(NamedTuple):
    """A run that is shown.

    Attributes:
        folder: where it lies.
        about: what results.json holds.
    """

    folder: Path
    about: dict[str, Any]

    @property
    def experiment(self) -> Experiment:
        """What was run."""
        return find(self.about["experiment"])

    @property
    def results(self) -> RunResults:
        """Its rows."""
        return RunResults(self.about["rows"])

    @property
    def answer(self) -> str:
        """What was found: its answer.txt, or else its first conclusion."""
        file = self.folder / ANSWER
        if file.exists():
            return " ".join(file.read_text(encoding="utf-8").split())
        return next(iter(self.experiment.conclude(self.results)), "")


def page(runs: Path, target: Path) -> str:
    """The text of the page, with one run of each experiment: a table of answers, then each.

    A full run is preferred to a quick one, then the newest.

    Args:
        runs: folder of runs.
        target: the page, which links figures relative to itself.
    """
    shown = published(runs)
    head = HEAD.format(runs=runs.as_posix(), page=target.as_posix())
    lines = "".join(_line(run) for run in shown)
    return "\n".join([head + lines, *(_section(run, target) for run in shown)])


def published(runs: Path) -> list[PublishedRun]:
    """One run of each experiment, in the order of the registry.

    Args:
        runs: folder of runs.
    """
    chosen: dict[str, PublishedRun] = {}
    for path in sorted(runs.glob(f"**/{RESULTS}")):
        run = PublishedRun(path.parent, json.loads(path.read_text(encoding="utf-8")))
        name = run.about["experiment"]
        if name not in chosen or _rank(run.about) >= _rank(chosen[name].about):
            chosen[name] = run
    return [chosen[name] for name in HOMES if name in chosen]


def _line(run: PublishedRun) -> str:
    heading = title(run.experiment, run.about)
    anchor = re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
    cells = (f"[{heading}](#{anchor})", run.experiment.question, run.answer)
    told = " | ".join(cell.replace("|", "\\|") for cell in cells)
    return f"| {told} | `{run.about['command']}` |\n"


def _section(run: PublishedRun, target: Path) -> str:
    """What was found, the first table and the figures; all else in a part that opens."""
    at = os.path.relpath(run.folder, target.parent) + "/"
    first, *others = [*tables(run.experiment, run.results), ""]
    remarks = run.folder / REMARKS
    parts = [
        f"## {title(run.experiment, run.about)}",
        f"**{run.answer}**",
        f"The question: {run.experiment.question}",
        first,
        *figures(run.experiment, at=at),
        remarks.read_text(encoding="utf-8").strip() if remarks.exists() else "",
        '<details markdown="1"><summary>All that it shows, and how it was run</summary>',
        bullets(run.experiment, run.results),
        ran(run.about),
        *others,
        "</details>",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _rank(about: dict) -> tuple[bool, str]:
    return not about["quick"], about["machine"]["date"]


def main() -> None:
    """Write the page named on the command line."""
    if len(sys.argv) != 3:
        sys.exit("usage: python -m attentropy.lab.harness.results_page RUNS PAGE")
    runs, target = map(Path, sys.argv[1:])
    target.write_text(page(runs, target), encoding="utf-8")


if __name__ == "__main__":
    main()
