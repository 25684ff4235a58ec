"""Try every architecture of transformers, and models of other libraries."""

import argparse
import json
import warnings
from pathlib import Path

import transformers

from tests.models.zoo.census import architectures, others
from tests.models.zoo.libraries import torchvision_operators
from tests.models.zoo.page import page
from tests.models.zoo.runner import cached, run, state

EXAMPLE = "python -m tests.models.zoo --jobs 1 --only bert,llama --json"


def main():
    parser = argparse.ArgumentParser(
        prog="python -m tests.models.zoo", description=__doc__, epilog=EXAMPLE
    )
    parser.add_argument("--only", help="architectures or subjects, with commas between them")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--seconds", type=float, default=60, help="CPU time limit of each model")
    parser.add_argument(
        "--cache", type=Path, default=Path("build/zoo"), help="folder of JSON lines"
    )
    parser.add_argument("--again", action="store_true", help="try those in the cache too")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    parser.add_argument("--page", type=Path, help="write the page of all models in the cache")
    asked = parser.parse_args()
    torchvision_operators()
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    names = asked.only.split(",") if asked.only else None
    files = [asked.cache / "transformers.jsonl", asked.cache / "libraries.jsonl"]
    for file, entries in zip(files, (architectures(), others()), strict=True):
        known = {entry.architecture: entry for entry in entries}
        chosen = entries if names is None else [known[n] for n in names if n in known]
        for record in run(chosen, file, seconds=asked.seconds, jobs=asked.jobs, again=asked.again):
            line = f"{record['architecture']}: {record['verdict']} {record['why']}"
            print(json.dumps(record) if asked.json else line, flush=True)
    if asked.page:
        records = [list(cached(file).values()) for file in files]
        about = {"version": transformers.__version__, "listed": len(architectures())}
        about["now"] = state()
        asked.page.write_text(page(*records, **about), encoding="utf-8")


if __name__ == "__main__":
    main()
