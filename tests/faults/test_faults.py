"""A sample of every fault; `python -m tests.faults` and the slow tier try all of them."""

import json
import subprocess
import sys

import pytest

from tests.faults.outcome import Outcome, table

MANY = ("kills", "room", "writers", "clock", "flips", "interrupts", "memory", "restarts", "clients")


def outcomes(*more):
    command = [sys.executable, "-m", "tests.faults", "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_few_of_all_but_the_longest():
    few = [name for name in MANY if name not in ("interrupts", "memory", "restarts")]
    found = outcomes("--only", ",".join(few), "--share", "0.02")
    assert [(o["fault"], o["lost"]) for o in found if o["lost"]] == []
    assert len(found) == 11
    assert all(o["tried"] == o["survived"] > 0 for o in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY)
def test_many(name):
    assert [(o["fault"], o["lost"]) for o in outcomes("--only", name) if o["lost"]] == []


def test_a_loss_is_counted():
    found = Outcome("a fault")
    found.note(None)
    found.note("a sample")
    assert table([found]).endswith("| a fault | 2 | 1 | 1 |")
