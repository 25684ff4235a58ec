import json

import pytest
from click.testing import CliRunner

from attentropy.cli import main


def call(*arguments):
    return CliRunner().invoke(main, ["theory", *arguments])


def test_evaluates():
    done = call("S_relu2", "beta=-1", "gamma=2")
    assert done.exit_code == 0
    assert float(done.output) == pytest.approx(0.301481342013819)


@pytest.mark.parametrize("scores", ["scores=-inf,0,0", 'scores=["-inf",0,0]'])
def test_vectors(scores):
    assert float(call("softmax_entropy", scores).output) == pytest.approx(0.6931471805599453)


def test_json():
    done = json.loads(call("mgf_laplace", "b=1", "--json").output)
    assert done == {"function": "mgf_laplace", "inputs": {"b": 1}, "value": "inf"}
    rows = json.loads(call("--json").output)
    assert {"function", "inputs", "formula", "domain", "source"} == set(rows[0])
    assert json.loads(call("S_exp", "--json").output)["formula"] == "exp(-gamma^2/2)"


def test_lists_and_shows():
    listed = call()
    assert listed.exit_code == 0
    assert "S_relu2" in listed.output
    assert "exp(-gamma^2/2)" in call("S_exp").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("S_relu", "beta=1"), "did you mean S_relu2"),
        (("alchemy",), "see `attentropy theory`"),
        (("S_exp", "beta"), "inputs are written name=value, got 'beta'"),
        (("S_exp", "beta=0", "gamma=-1"), "S_exp: gamma must be finite and >= 0, got -1"),
        (("S_exp", "beta=0"), "inputs of S_exp must be exactly beta, gamma, got beta"),
        (("S_exp", "beta=x", "gamma=1"), "beta must be a number, got x"),
    ],
)
def test_complaints(arguments, message):
    done = call(*arguments)
    assert done.exit_code == 2
    assert message in done.output
