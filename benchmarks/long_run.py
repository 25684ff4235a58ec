"""What does a run of a million samples cost to keep, to show and to export?

    python -m benchmarks.long_run --samples 1000000 --heads 4 --folder /tmp/long

Writes a run of made-up numbers through `RunStore` (goes on where it was stopped), then measures in
new processes, above what the libraries take: the page, one look of `attentropy watch`, the
list of runs, and with --export the whole as CSV.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from attentropy.core.statistics import NAMES, HeadRow
from attentropy.training.metrics import Metrics
from attentropy.training.runstore import read
from attentropy.training.runstore.writer import RunStore

LAYER = 16  # heads of a layer

MEASURED = """
import resource, sys, time
from attentropy.report.run import NUMBERS, run_page
from attentropy.training.runstore import read
from attentropy.cli.training.runs import _line
import attentropy.cli.training.export
from pathlib import Path
begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
{work}
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(time.perf_counter() - begin, (after - before) / 1024)
"""
WORKS = {
    "page": "print(len(run_page(read(sys.argv[1], most=NUMBERS))))",
    "watch": "print(len(read(sys.argv[1], last=64).steps))",
    "runs": "print(_line(Path(sys.argv[1]))['step'])",
}


def rows(heads: int, numbers: np.ndarray) -> list[HeadRow]:
    """Head rows of made-up numbers [heads, statistics]."""
    each = min(heads, LAYER)
    return [
        HeadRow(
            layer=f"layers.{i // each}.attn", index=i // each, call=0, phase="forward",
            kind="self", head=i % each, heads=each, head_dim=64, causal=True, length=128, rows=128,
            twin=-1, **dict(zip(NAMES, numbers[i].tolist(), strict=True)),
        )
        for i in range(heads)
    ]  # fmt: skip


def write(file: Path, *, samples: int, heads: int) -> float:
    """The run, and the seconds that each sample took."""
    store, generator = RunStore(file), np.random.default_rng(0)
    present = read(file, last=1).steps
    first = present[-1] + 1 if present else 0
    made = [rows(heads, generator.random((heads, len(NAMES)))) for _ in range(16)]
    begin = time.perf_counter()
    for step in range(first, samples):
        metrics = Metrics({}, rows=made[step % 16], alerts=[], loss=1 / (1 + step))
        store(metrics, step)
    store.close()
    return (time.perf_counter() - begin) / max(1, samples - first)


def measured(work: str, file: Path) -> tuple[float, float]:
    """Seconds and megabytes of a piece of work in a process of its own."""
    code = MEASURED.replace("{work}", work)
    found = subprocess.run(
        [sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True
    )
    seconds, megabytes = found.stdout.split("\n")[-2].split()
    return float(seconds), float(megabytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--export", action="store_true", help="write the CSV too")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    file = options.folder / f"long-{options.samples}-{options.heads}.db"
    each = write(file, samples=options.samples, heads=options.heads)
    found = {"bytes per sample": file.stat().st_size / options.samples, "seconds to write": each}
    works = dict(WORKS)
    if options.export:
        target = options.folder / "long.csv"
        works["export"] = (
            "attentropy.cli.training.export.command.main("
            f"[sys.argv[1], '--out', {str(target)!r}], standalone_mode=False)"
        )
    for name, work in works.items():
        found[f"{name}, seconds"], found[f"{name}, MB"] = measured(work, file)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:20} {value:.4g}")


if __name__ == "__main__":
    main()
