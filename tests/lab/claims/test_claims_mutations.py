"""Every check fails under the mutation that mutations.json has for it."""

import json

import pytest

from attentropy.lab.claims import CLAIMS
from tests.lab.claims.mutations import PATH, candidates, caught, verdict

MUTATIONS = json.loads(PATH.read_text(encoding="utf-8"))
SAMPLE = list(CLAIMS)[::20]


def test_every_check_has_a_mutation():
    assert list(MUTATIONS) == list(CLAIMS)


@pytest.mark.parametrize("id_", SAMPLE)
def test_a_check_fails_under_its_mutation(id_):
    assert caught(id_, MUTATIONS[id_])


@pytest.mark.slow
@pytest.mark.parametrize("id_", [id_ for id_ in CLAIMS if id_ not in SAMPLE])
def test_every_check_fails_under_its_mutation(id_):
    assert caught(id_, MUTATIONS[id_])


def test_a_change_that_matters_to_nothing_leaves_the_verdict():
    # the spread of 1e4 becomes 1.05e4, whose entropy is as good as 0 too
    first, second = [m for m in candidates("000-(67)") if m.startswith("number")][2:]
    assert {verdict("000-(67)", first), verdict("000-(67)", second)} == {"cond"}


def test_bounds_and_numbers_that_are_shown_are_no_mutations():
    # of `huge < 1e-2, small < 0.1, d64=..., d1e8=...` nothing: two calls with two numbers each
    assert sum(m.startswith("number") for m in candidates("000-(67)")) == 4
