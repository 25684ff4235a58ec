"""The results page, written from committed runs only.

    python -m attentropy.lab.harness.results_page RUNS PAGE
    python -m attentropy.lab.harness.results_page RUNS PAGE zh

RUNS is a directory of runs (docs/results); PAGE the Markdown file to write (docs/results.md, or
docs/zh/results.md), which links the figures where they lie. Next to the results of a run, a file
answer.txt says in a sentence or two what was found, answer.zh.txt says it in Chinese, and
remarks.txt says what has changed since. Every number of an answer stands in the conclusions or
tables of its run; a test says so.
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from attentropy.core.language.speaking import speaking, told
from attentropy.lab.harness.experiment import Experiment
from attentropy.lab.harness.registry import HOMES, find
from attentropy.lab.harness.results import RunResults
from attentropy.lab.harness.run_folder import RESULTS
from attentropy.lab.harness.summary import bullets, figures, given_model, ran, tables, title

REMARKS = "remarks.txt"
ANSWER, CHINESE_ANSWER = "answer.txt", "answer.zh.txt"

HEAD = """# Results of the lab

Written by `python -m attentropy.lab.harness.results_page {runs} {page}` from what is in
`{runs}`; do not edit. Each experiment is one command, `attentropy lab NAME`; numbers in the
sentences are computed from the same files as the tables. Results that contradict an expectation
are kept. Runs marked *quick* used the small configuration that continuous integration runs: they
show the method, and their numbers are rough. Errors are standard deviations over seeds unless a
sentence says otherwise.

| experiment | question | answer | command |
|---|---|---|---|
"""
CHINESE_HEAD = """# 实验结果

<!-- written by attentropy.lab.harness.results_page -->

由 `python -m attentropy.lab.harness.results_page {runs} {page} zh` 根据 `{runs}` 里的运行写出，
请勿手改。每个实验是一条命令 `attentropy lab NAME`；与预期相反的结果同样保留。标有 *quick run* 的
运行用的是小配置，只说明方法，数字粗略。误差为各种子间的标准差，句中另有说明的除外。表中规则和条件的
名字与程序里的相同；每节只列第一张表和图，其余的表、逐条说明和运行的设置见英文页的同名一节。

| 实验 | 问题 | 答案 | 命令 |
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
        written = self._written(ANSWER)
        return written or next(iter(self.experiment.conclude(self.results)), "")

    @property
    def chinese_answer(self) -> str:
        """The same in Chinese: its answer.zh.txt; the English one where there is none."""
        return self._written(CHINESE_ANSWER) or self.answer

    def _written(self, name: str) -> str:
        file = self.folder / name
        return " ".join(file.read_text(encoding="utf-8").split()) if file.exists() else ""


def page(runs: Path, target: Path) -> str:
    """The text of the page, with one run of each experiment: a table of answers, then each.

    A full run is preferred to a quick one, then the newest.

    Args:
        runs: folder of runs.
        target: the page, which links figures relative to itself.
    """
    shown = published(runs)
    head = HEAD.format(runs=runs.as_posix(), page=target.as_posix())
    lines = "".join(_line(run, run.answer) for run in shown)
    return "\n".join([head + lines, *(_section(run, target) for run in shown)])


def chinese_page(runs: Path, target: Path) -> str:
    """The text of the Chinese page: the same answers, first tables and figures.

    Args:
        runs: folder of runs.
        target: the page, which links figures, and the English page, relative to itself.
    """
    shown = published(runs)
    head = CHINESE_HEAD.format(runs=runs.as_posix(), page=target.as_posix())
    with speaking("zh"):
        lines = "".join(_line(run, run.chinese_answer) for run in shown)
        return "\n".join([head + lines, *(_chinese_section(run, target) for run in shown)])


def published(runs: Path) -> list[PublishedRun]:
    """One run of each experiment and model, in the order of the registry.

    Args:
        runs: folder of runs.
    """
    chosen: dict[tuple[str, str], PublishedRun] = {}
    for path in sorted(runs.glob(f"**/{RESULTS}")):
        run = PublishedRun(path.parent, json.loads(path.read_text(encoding="utf-8")))
        key = run.about["experiment"], given_model(run.about)
        if key not in chosen or _rank(run.about) >= _rank(chosen[key].about):
            chosen[key] = run
    return [chosen[key] for name in HOMES for key in sorted(chosen) if key[0] == name]


def _line(run: PublishedRun, answer: str) -> str:
    heading = title(run.experiment, run.about)
    cells = (f"[{heading}](#{_anchor(heading)})", told(run.experiment.question), answer)
    line = " | ".join(cell.replace("|", "\\|") for cell in cells)
    return f"| {line} | `{run.about['command']}` |\n"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")


def _chinese_section(run: PublishedRun, target: Path) -> str:
    """What was found, the first table and the figures; a link to all else."""
    at = os.path.relpath(run.folder, target.parent) + "/"
    heading = title(run.experiment, run.about)
    first = next(iter(tables(run.experiment, run.results)), "")
    parts = [
        f"## {heading}",
        f"**{run.chinese_answer}**",
        f"问题：{told(run.experiment.question)}",
        re.sub(r"\*\*(.+?)\*\*", lambda found: f"**{told(found[1])}**", first, count=1),
        *(f"![{told(f.title)}]({at}{f.name}.png)" for f in run.experiment.figures),
        f"其余的表、逐条说明和运行的设置：[英文页](../results.md#{_anchor(heading)})。",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


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
    if len(sys.argv) not in (3, 4) or sys.argv[3:] not in ([], ["zh"]):
        sys.exit("usage: python -m attentropy.lab.harness.results_page RUNS PAGE [zh]")
    runs, target = map(Path, sys.argv[1:3])
    write = chinese_page if sys.argv[3:] else page
    target.write_text(write(runs, target), encoding="utf-8")


if __name__ == "__main__":
    main()
