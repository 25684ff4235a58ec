"""Try every architecture of transformers: python -m tests.models.zoo --only bert,llama --json."""

import argparse
import json
import sys
from pathlib import Path

import transformers

from tests.models.zoo.census import entries, run

CACHE = Path("build/zoo/transformers.jsonl")


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.models.zoo", description=__doc__)
    parser.add_argument("--only", help="architectures, with commas between them")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--seconds", type=float, default=60, help="CPU time limit of each model")
    parser.add_argument("--cache", type=Path, default=CACHE, help="JSON lines of what was tried")
    parser.add_argument("--again", action="store_true", help="try those in the cache too")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    asked = parser.parse_args()
    transformers.logging.set_verbosity_error()
    names = asked.only.split(",") if asked.only else None
    chosen = [e for e in entries() if names is None or e.architecture in names]
    for record in run(
        chosen, asked.cache, seconds=asked.seconds, jobs=asked.jobs, again=asked.again
    ):
        print(
            json.dumps(record) if asked.json else "{architecture}: {verdict} {why}".format(**record)
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
