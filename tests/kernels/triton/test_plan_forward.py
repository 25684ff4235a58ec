"""What is launched for a call, and how keys are shared out."""

import pytest
import torch

from attentropy.core.results import COMPUTED
from attentropy.kernels.triton import plan_forward as plans
from attentropy.kernels.triton.configs import TileSizes
from attentropy.kernels.triton.plan_forward import empty_states, plan_forward, processors, shares
from attentropy.kernels.triton.problem import Problem
from tests.kernels.triton.problems import problem, tensors


def names(launches):
    return [one.kernel.__name__ for one in launches]


def test_one_sweep_and_one_more_for_what_is_not_finite_and_for_varentropy():
    launches, written = plan_forward(problem(*tensors(40, 50)))
    assert names(launches) == ["forward", "forward", "spread"]
    assert [one.args["SAFE"] for one in launches[:2]] == [False, True]
    assert launches[0].args["written"] is written
    assert launches[0].args["partial"] is None
    assert written.out.shape == (1, 2, 40, 6)


def test_programs_cover_every_row():
    launches, _ = plan_forward(problem(*tensors(40, 50, batch=3, heads=4, key_heads=2)))
    assert launches[0].programs(16) == 3 * 4 * 3
    assert launches[0].programs(64) == 3 * 4


def test_few_queries_are_packed_by_key_head():
    launches, _ = plan_forward(problem(*tensors(3, 50, heads=8, key_heads=2)))
    assert launches[0].args["PACK"]
    assert launches[0].programs(16) == 2


def test_shares_of_the_keys_are_merged():
    launches, _ = plan_forward(problem(*tensors(1, 2000)))
    first, join, again, _ = launches
    assert join.kernel.__name__ == "join"
    assert first.args["splits"] == join.args["splits"] > 1
    assert first.args["splits"] * first.args["share"] >= 2000
    assert (again.args["splits"], again.args["partial"]) == (1, None)
    assert again.args["share"] >= 2000


@pytest.mark.parametrize("keys", [1, 255, 256, 1000, 4096, 5000])
@pytest.mark.parametrize("programs", [1, 3, 100])
def test_shares_cover_all_keys_and_none_is_empty(keys, programs):
    made = problem(*tensors(1, keys, width=16))
    for grain in (64, 256):
        splits, share = shares(made, programs, grain=grain)
        assert splits * share >= keys
        assert (splits - 1) * share < keys
        assert splits == 1 or share % grain == 0


def test_no_tile_is_in_two_shares(monkeypatch):
    """A tile reads on to its end: the keys beyond a share would count twice."""
    monkeypatch.setattr(Problem, "tiles", lambda self, kernel: TileSizes(16, 256, 4, 1))
    first = plan_forward(problem(*tensors(1, 2000)))[0][0]
    assert first.args["splits"] > 1
    assert first.args["share"] % 256 == 0


@pytest.mark.parametrize(
    ("asked", "bits"),
    [((), 0), (("entropy",), 1), (("varentropy",), 3), (("argmax", "lse"), 8), (COMPUTED, 15)],
)
def test_statistics_that_are_not_asked_for_are_left_out(asked, bits):
    launches, _ = plan_forward(problem(*tensors(40, 50), asked=frozenset(asked)))
    assert launches[0].args["WANTED"] == bits
    assert (names(launches)[-1] == "spread") == bool(bits & 2)
    sunk = problem(*tensors(40, 50), asked=frozenset(asked), sink=torch.zeros(2))
    assert plan_forward(sunk)[0][0].args["WANTED"] == 15


def test_varentropy_is_summed_again_over_every_row():
    last = plan_forward(problem(*tensors(40, 50, batch=3, heads=4, key_heads=2)))[0][-1]
    assert last.programs(16) == 3 * 4 * 3


def test_states_of_shares_have_room():
    states = empty_states(problem(*tensors(2, 50)), 3)
    assert states.m.shape == (1, 2, 2, 3)
    assert states.acc.shape == (1, 2, 2, 3, 6)
    assert states.top.dtype == torch.int32


def test_processors_of_the_interpreter():
    assert processors(torch.device("cpu")) == plans.INTERPRETED_PROCESSORS
