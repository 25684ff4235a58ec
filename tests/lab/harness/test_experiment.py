from dataclasses import FrozenInstanceError, replace

import pytest

from attentropy.lab.harness.experiment import FigureSpec, TableSpec
from attentropy.lab.harness.registry import all_experiments
from attentropy.lab.harness.results import RunResults
from tests.lab.harness.toy import TOY


def test_an_experiment_is_a_value():
    with pytest.raises(FrozenInstanceError):
        TOY.name = "other"
    assert replace(TOY, name="other").question == TOY.question
    results = RunResults([{"n": 1}])
    assert TOY.derive(results) is results
    assert TOY.on is None


def test_two_specifications_do_not_share_their_filters():
    first, second = (TableSpec("t", "h", ("rule",), "n") for _ in range(2))
    first.where["n"] = 2
    assert second.where == {}
    assert FigureSpec("f", "F", "n", "h", "rule").where == {}


@pytest.mark.parametrize("experiment", all_experiments(), ids=lambda e: e.name)
def test_figures_of_an_experiment_have_names_of_their_own(experiment):
    names = [figure.name for figure in experiment.figures]
    assert len(set(names)) == len(names) > 0
    assert experiment.question.endswith("?")
    assert all(set(figure.log) <= set("xy") for figure in experiment.figures)
