"""What a team shares out is what one process gives, and a rank that dies is named."""

import os
import pickle
import signal

import pytest
import torch

import attentropy as at
from attentropy.core.errors import ArgumentError, AttentropyError, DistributedError
from attentropy.core.statistics import NAMES
from attentropy.distributed.groups import peers
from attentropy.distributed.team import ALONE, Team, Unison, packed
from tests.processes import spawn
from tests.scans import tiny

ITEMS = [3, 1, 4, 1, 5, 9, 2]


def scanned(team=ALONE):
    """A scan of 11 windows of 40 tokens, and of 30 of 15: ragged for any number of ranks."""
    tokens = torch.randint(0, 256, (450,), generator=torch.Generator().manual_seed(0))
    found = at.scan(tiny.make(), tokens, lengths=[15, 40], batch=3, trained=20, team=team)
    rows = [[row[name] for name in NAMES] for one in found.measures for row in one.rows]
    told = (found.verdict, found.remedies, [one.profiles for one in found.measures])
    return rows, [one.loss for one in found.measures], told, found.processes


def calibrated(team=ALONE):
    """A plan from five batches of two rows, and one of one row."""
    ids = torch.randint(0, 256, (11, 40), generator=torch.Generator().manual_seed(0))
    return at.calibrate(tiny.make(), ids.split(2), [10, 20, 40], team=team).to_json()


def together(rank):
    """Each process does all the work, and has what the first one found."""
    team, own = Unison(peers()), []
    assert team.map(lambda x: own.append(x) or (x, rank), ITEMS) == [(x, 0) for x in ITEMS]
    assert own == ITEMS == team.share(ITEMS)
    assert team.of_first(lambda: rank) == 0
    assert (team.size, team.is_first) == (1, True)


def shared(rank):
    together(rank)
    team, own = Team(peers()), []
    got = team.map(lambda x: own.append(x) or x * x, ITEMS)
    assert got == [x * x for x in ITEMS]
    assert own == ITEMS[rank :: team.size]
    assert team.map(str, []) == []
    assert team.map(str, [7]) == ["7"]
    assert team.of_first(os.getpid) == team.gather(os.getpid())[0]
    with pytest.raises(ZeroDivisionError):  # the first item that fails speaks for all
        team.map(lambda x: 1 // 0 if x == 1 else [][x], [1, 2, 3, 4])
    with pytest.raises(AttentropyError, match="^ArgumentError: n must be even, got 3"):
        team.of_first(lambda: (_ for _ in ()).throw(ArgumentError("n", "even", 3)))
    team.check_same("the text", "abc")
    with pytest.raises(DistributedError, match="the size must be the same on all ranks, got 0 on "):
        team.check_same("the size", rank)
    return calibrated(team), *scanned(team)


def test_a_team_gives_what_one_process_gives():
    *one, alone = scanned()
    plan = calibrated()
    found = spawn(shared, 2)
    for rank in found:
        assert not isinstance(rank, str), rank
        planned, *many, processes = rank
        assert planned == plan
        assert (alone, processes) == (1, 2)
        torch.testing.assert_close(
            torch.tensor(many[0]), torch.tensor(one[0]), rtol=1e-12, atol=0, equal_nan=True
        )
        assert repr(many[1:]) == repr(one[1:])


@pytest.mark.slow
def test_three_ranks_give_what_one_process_gives():
    *one, _ = scanned()
    for rank in spawn(shared, 3):
        assert not isinstance(rank, str), rank
        assert repr(rank[:3]) == repr(tuple(one))


def dying(rank):
    team = Team(peers())
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(DistributedError) as caught:
        team.map(str, ITEMS)
    return {"said": str(caught.value)}


@pytest.mark.slow
def test_a_rank_that_dies_is_named():
    found = spawn(dying, 3, of=[0])
    assert found[0]["said"].startswith("rank 1 died, left or did not answer (")


def dying_together(rank):
    """Work that exchanges messages: what they raise is not what was computed."""
    team = Unison(peers())
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(DistributedError) as caught:
        team.map(lambda x: torch.distributed.all_reduce(torch.ones(x)), ITEMS)
    with pytest.raises(RuntimeError, match="size of tensor") as own:
        team.of_first(lambda: torch.ones(2) + torch.ones(3))
    assert not isinstance(own.value, DistributedError)
    return {"said": str(caught.value)}


@pytest.mark.slow
def test_a_rank_that_dies_is_told_where_all_do_the_work():
    found = spawn(dying_together, 2, of=[0])
    assert found[0]["said"].startswith("another rank died, left or did not answer (")


def test_alone():
    assert ALONE.map(str, [1, 2]) == ["1", "2"]
    assert ALONE.of_first(lambda: 3) == 3
    assert ALONE.gather("x") == ["x"]
    assert (ALONE.size, ALONE.is_first) == (1, True)
    ALONE.check_same("anything", 1)
    with pytest.raises(ZeroDivisionError):
        ALONE.map(lambda x: 1 // x, [0])


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(2, 3, dtype=torch.float64).T,
        torch.tensor(2.0),
        torch.zeros(0, 3, dtype=torch.int64),
        torch.randn(4).bfloat16(),
        torch.randn(3, requires_grad=True),
        torch.nn.Parameter(torch.randn(3)),
    ],
)
def test_tensors_arrive_as_they_were_sent(x):
    got = pickle.loads(packed({"one": [x]}))["one"][0]
    assert torch.equal(got, x)
    assert (type(got), got.dtype, got.requires_grad) == (type(x), x.dtype, x.requires_grad)
    got.detach().add_(1)  # it can be written to, and is nobody else's
