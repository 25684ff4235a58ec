import os
import subprocess
import sys
from types import SimpleNamespace

from attentropy.distributed.groups import Peers
from attentropy.distributed.launched import dead, launched, own_device, world_size
from attentropy.distributed.team import ALONE, Team


def test_without_a_launcher_a_process_is_alone(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert world_size() == 1
    with launched() as team:
        assert team is ALONE
    assert dead(ALONE) == []


def test_each_process_of_a_machine_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert [own_device(name) for name in ("cuda", "cuda:0", "cpu")] == ["cuda:3", "cuda:0", "cpu"]
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert own_device("cuda") == "cuda"


def test_the_dead_of_this_machine_are_known(monkeypatch):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    homes = {0: f"here {os.getpid()}", 1: f"here {ended.pid}", 2: f"elsewhere {ended.pid}"}
    store = SimpleNamespace(get=lambda key: homes[int(key.rpartition("/")[2])].encode())
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    assert dead(Team(Peers(None, 0, 3), store)) == [1]
