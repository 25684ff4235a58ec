import json

import pytest

from attentropy import __version__
from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.lab.harness.run_plan import RunPlan
from tests.lab.harness.toy import TOY


def test_seeds():
    with pytest.raises(ArgumentError, match="seeds must be >= 1, got 0"):
        RunPlan(TOY, seeds=0)
    with pytest.raises(
        ArgumentTypeError, match="seeds must be an integer or a tuple of them, got 1.5"
    ):
        RunPlan(TOY, seeds=1.5)


@pytest.mark.parametrize("seeds", [(), (1, 1), (-1, 2)])
def test_named_seeds_differ(seeds):
    with pytest.raises(ArgumentError, match="seeds must be different numbers >= 0, at least one"):
        RunPlan(TOY, seeds=seeds)


def test_seeds_can_be_named():
    plan = RunPlan(TOY, seeds=(8, 3))
    assert [unit.seed for unit in plan.units()] == [8, 3, 8, 3]
    assert plan.command() == "attentropy lab toy --seeds 8,3"
    assert RunPlan(TOY, seeds=(5,)).command() == "attentropy lab toy --seeds 5,"
    assert plan.record()["seeds"] == [8, 3]
    with pytest.raises(ArgumentTypeError, match="seeds must be an integer or a tuple of them"):
        RunPlan(TOY, seeds=(True,))


def test_unit_names_are_file_names_and_differ():
    names = [unit.name for unit in RunPlan(TOY, seeds=2).units()]
    assert names == ["a_b-seed0", "a_b-seed1", "c_d-seed0", "c_d-seed1"]


def test_the_record_is_what_json_gives_back():
    record = RunPlan(TOY, quick=True, seeds=2).record()
    assert record == json.loads(json.dumps(record))
    assert record == {
        "experiment": "toy",
        "quick": True,
        "seeds": 2,
        "attentropy": __version__,
        "config": {"lengths": [2], "conditions": ["a/b", "c d"]},
    }


def test_the_command_can_be_pasted_into_a_shell():
    plan = RunPlan(TOY, quick=True, seeds=4, options=("--model", "my model"))
    assert plan.command() == "attentropy lab toy --quick --seeds 4 --model 'my model'"
    assert RunPlan(TOY).command() == "attentropy lab toy --seeds 3"


def test_the_seeds_of_a_condition_come_together():
    units = RunPlan(TOY, seeds=2).units()
    assert [unit.condition for unit in units] == ["a/b", "a/b", "c d", "c d"]
    assert [unit.seed for unit in units] == [0, 1, 0, 1]
