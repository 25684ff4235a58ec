"""The results page, written from committed runs only.

    python -m attentropy.lab.harness.results_page RUNS PAGE

RUNS is a directory of runs (docs/results); PAGE the Markdown file to write (docs/results.md), which
links the figures where they lie. A file remarks.txt beside the results of a run, such as what has
changed since, follows them on the page.
"""

import json
import os
import sys
from pathlib import Path

from attentropy.lab.harness.registry import HOMES, find
from attentropy.lab.harness.results import RunResults
from attentropy.lab.harness.run_folder import RESULTS
from attentropy.lab.harness.summary import summary

REMARKS = "remarks.txt"

HEAD = """# Results of the lab

Written by `python -m attentropy.lab.harness.results_page {runs} {page}` from what is in
`{runs}`; do not edit. Each experiment is one command, `attentropy lab NAME`; numbers in the
sentences are computed from the same files as the tables. Results that speak against an expectation
are kept. Runs marked *quick* used the small configuration that continuous integration runs: they
show the method, and their numbers are rough.
"""


def page(runs: Path, target: Path) -> str:
    """The text of the page, with one run of each experiment.

    A full run is preferred to a quick one, then the newest.

    Args:
        runs: folder of runs.
        target: the page, which links figures relative to itself.
    """
    chosen: dict[str, tuple[Path, dict]] = {}
    for path in sorted(runs.glob(f"**/{RESULTS}")):
        about = json.loads(path.read_text(encoding="utf-8"))
        name = about["experiment"]
        if name not in chosen or _rank(about) >= _rank(chosen[name][1]):
            chosen[name] = (path.parent, about)
    parts = [HEAD.format(runs=runs.as_posix(), page=target.as_posix())]
    for name in HOMES:
        if name in chosen:
            where, about = chosen[name]
            at = os.path.relpath(where, target.parent) + "/"
            parts.append(summary(find(name), RunResults(about["rows"]), about, level=2, at=at))
            if (remarks := where / REMARKS).exists():
                parts.append(remarks.read_text(encoding="utf-8"))
    return "\n".join(parts)


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
