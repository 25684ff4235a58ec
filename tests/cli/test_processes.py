"""Commands under torchrun: the results of one process, written once; a dead rank is named."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attentropy.cli.processes import keeping, team_of, writing_to
from attentropy.core.errors import DistributedError
from attentropy.distributed.groups import Peers
from attentropy.distributed.team import ALONE, Team

SCAN = ("scan", "--lengths", "50,128,300", "--tokens-per-length", "1900")
TIMES = {"created", "seconds", "command", "processes"}


def run(processes, *words):
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}")
    launcher = torchrun if processes > 1 else ()
    command = [sys.executable, *launcher, "-m", "attentropy", *map(str, words)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def finished(processes, *words):
    started = run(processes, *words)
    out, err = started.communicate(timeout=500)
    assert started.returncode == 0, err
    return out


def read(folder):
    """scan.json without what differs between two runs."""
    found = json.loads((folder / "scan.json").read_bytes())
    for measure in found["measures"]:
        del measure["seconds"]
    found["call"] = found["call"].replace(str(folder), "")
    return {name: value for name, value in found.items() if name not in TIMES}, found["processes"]


def test_one_process_writes_and_says_where_to_go_on(tmp_path, capsys):
    other = Team(Peers(None, 1, 2))
    with team_of() as team:
        assert team is ALONE
    with writing_to(tmp_path / "new", other):
        assert not (tmp_path / "new").exists()
    with writing_to(tmp_path / "new", ALONE):
        assert (tmp_path / "new").is_dir()
    (tmp_path / "scan.json").touch()
    for team, error in ((other, KeyboardInterrupt), (ALONE, DistributedError)):
        with pytest.raises(error), keeping(tmp_path / "scan.json", team):
            raise error
    assert capsys.readouterr().err.count("--resume goes on") == 1


@pytest.mark.slow
def test_a_shared_scan_is_that_of_one_process(tmp_path):
    for processes in (1, 2, 3):
        out = finished(processes, *SCAN, "--json", "--out", tmp_path / str(processes))
        assert json.loads(out)["complete"]
    one, alone = read(tmp_path / "1")
    assert alone == 1
    for processes in (2, 3):
        many, counted = read(tmp_path / str(processes))
        assert counted == processes
        assert many == one
        assert (tmp_path / str(processes) / "report.html").exists()


@pytest.mark.slow
def test_a_shared_extension_is_that_of_one_process(tmp_path):
    words = ("extend", "--to", "256", "--windows", "3", "--no-per-head", "--json", "--out")
    found = [json.loads(finished(n, *words, tmp_path / str(n))) for n in (1, 2)]
    for one in found:
        one["plan"] = one["plan"] and Path(one["plan"]).name
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_rank_that_dies_is_named_and_resume_goes_on(tmp_path):
    words = ("scan", "--lengths", "64,128,1200", "--out", tmp_path / "out")
    started, path = run(2, *words), tmp_path / "out" / "scan.json"
    while not path.exists() or len(json.loads(path.read_bytes())["measures"]) < 2:
        assert started.poll() is None
        time.sleep(0.05)
    os.kill(child(started.pid, rank=1), signal.SIGKILL)
    said = started.communicate(timeout=60)[1]
    assert started.returncode != 0
    assert "rank 1 died" in said
    assert "--resume goes on" in said
    kept = json.loads(path.read_bytes())
    assert not kept["complete"]
    assert [one["length"] for one in kept["measures"]] == [64, 128]
    finished(2, *words, "--resume")
    done = json.loads(path.read_bytes())
    assert done["complete"]
    assert done["measures"][:2] == kept["measures"]
    assert [one["length"] for one in done["measures"]] == [64, 128, 1200]


def child(parent, *, rank):
    """The process of a rank that torchrun started."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            ours = (folder / "stat").read_text().rpartition(")")[2].split()[1] == str(parent)
            named = f"RANK={rank}".encode() in (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if ours and named:
            return int(folder.name)
    raise AssertionError(f"there is no rank {rank}")
