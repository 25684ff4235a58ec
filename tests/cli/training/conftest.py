"""A recorded run in the directory of runs."""

import pytest
from click.testing import CliRunner

from attentropy.cli import main
from attentropy.training.alarms import Alert
from attentropy.training.runstore import RunStore
from tests.training.runstore.test_writer import sample


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTENTROPY_RUNS", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run():
    store = RunStore("mine")
    alert = Alert(10, "logit growth", "critical", ((0, 1),), "logits reached 60", 10)
    store(sample(1.0, loss=3.5), 0)
    store(sample(2.0, alerts=[alert], loss=3.25), 10)
    store.close()
    return "mine"


@pytest.fixture
def call():
    def invoke(*arguments, code=0):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == code, result.output
        return result.output

    return invoke
