"""Try every fault and print tried, survived and lost.

python -m tests.faults                     the numbers of docs/reliability.md
python -m tests.faults --only kills,room --share 0.1 --json    a tenth of some
"""

import argparse
import dataclasses
import json
import random
import tempfile
from pathlib import Path

from tests.faults import clients, elastic, flips, interrupts, stores
from tests.faults.outcome import Outcome, table

FAULTS = {
    "kills": (stores.kills, 500),
    "room": (stores.no_room, 200),
    "writers": (stores.two_writers, 50),
    "clock": (stores.clock_backwards, 20),
    "flips": (flips.flips, 1000),
    "interrupts": (interrupts.interrupts, 30),
    "memory": (interrupts.little_memory, 10),
    "restarts": (elastic.restarts, 10),
    "clients": (clients.clients, 200),
}


def tried(name: str, share: float = 1.0, seed: int = 0) -> list[Outcome]:
    """The outcomes of one kind of fault, in a folder of its own."""
    fault, usual = FAULTS[name]
    with tempfile.TemporaryDirectory() as folder:
        found = fault(Path(folder), max(1, round(share * usual)), random.Random(seed))
    return found if isinstance(found, list) else [found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="some of: " + ", ".join(FAULTS))
    parser.add_argument("--share", type=float, default=1.0, help="of the usual number of trials")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(FAULTS)
    outcomes = [outcome for name in names for outcome in tried(name, options.share)]
    if options.json:
        print(json.dumps([dataclasses.asdict(outcome) for outcome in outcomes]))
        return
    print(table(outcomes))
    for outcome in outcomes:
        for wrong in outcome.lost:
            print(f"{outcome.fault}: {wrong}")


if __name__ == "__main__":
    main()
