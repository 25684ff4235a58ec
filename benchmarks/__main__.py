"""python -m benchmarks [--quick] [--json FILE]: the table of attentropy.bench."""

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from attentropy.bench.runner import as_json, measure
from attentropy.bench.table import QUICK, SIZES, cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small shape")
    parser.add_argument("--repeat", type=int, default=11)
    parser.add_argument("--json", type=Path, help="write the results here")
    given = parser.parse_args()
    sizes = QUICK if given.quick else SIZES
    console = Console(stderr=True)
    results = [
        result
        for case in track(cases(sizes), "measuring", console=console)
        for result in measure(case, repeat=given.repeat, memory=True)
    ]
    table = Table("case", "contender", "ms", "time / sdpa", "extra MiB")
    for r in results:
        extra = "" if r.extra_mib is None else f"{r.extra_mib:.0f}"
        table.add_row(r.case, r.contender, f"{r.seconds * 1e3:.2f}", f"{r.ratio:.2f}", extra)
    Console().print(table)
    if given.json:
        given.json.write_text(json.dumps(as_json(results), indent=1))


if __name__ == "__main__":
    main()
