import pytest

from attentropy.core.errors import ArgumentError
from attentropy.lab.harness.registry import HOMES, all_experiments, find
from attentropy.lab.harness.run_plan import RunPlan


def test_every_experiment_is_found_by_its_name():
    assert [experiment.name for experiment in all_experiments()] == list(HOMES)


@pytest.mark.parametrize("name", HOMES)
def test_units_have_different_names_and_quick_differs(name):
    experiment = find(name)
    assert experiment.quick != experiment.full
    for quick in (True, False):
        names = [unit.name for unit in RunPlan(experiment, quick=quick).units()]
        assert len(names) == len(set(names)) > 0


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("scale", "scales"),
        ("max-retrieval", "extrapolate/max-retrieval"),
        ("langage", "extrapolate/language"),
        ("extrapolate/visoin", "extrapolate/vision"),
    ],
)
def test_the_nearest_name_is_suggested(wrong, near):
    with pytest.raises(ArgumentError, match=f"did you mean '{near}'"):
        find(wrong)


def test_a_name_like_no_other():
    with pytest.raises(ArgumentError, match="experiment must be one of extrapolate/max-retrieval"):
        find("zzzz")
