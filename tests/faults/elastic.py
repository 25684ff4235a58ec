"""Processes that torchrun starts again: the run goes on without a gap and without a double."""

import os
import random
import subprocess
import sys
from pathlib import Path

from attentropy.training.runstore import read
from tests.faults.outcome import Outcome

STEPS, SAVED = 30, 10
WORK = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
import attentropy as at
from attentropy.training.runstore import RunStore
folder, kill, steps, saved = sys.argv[1], *map(int, sys.argv[2:])
dist.init_process_group("gloo")
rank, restarted = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
torch.manual_seed(0)
model = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
file = f"{folder}/checkpoint.pt"
first = torch.load(file)["step"] if os.path.exists(file) else 0
loggers = [RunStore(f"{folder}/run.db")] if rank == 0 else []
with at.Monitor(model, every=1, loggers=loggers) as monitor:
    for step in range(first, steps):
        if step == kill and rank == 1 and not restarted:
            os.kill(os.getpid(), 9)
        loss = model(torch.randn(2, 8, 16)).square().mean()
        loss.backward()
        monitor.step(loss=loss, step=step)
        if rank == 0 and (step + 1) % saved == 0:
            torch.save({"step": step + 1}, file + ".new")
            os.replace(file + ".new", file)
dist.destroy_process_group()
"""


def restarts(folder: Path, count: int, draw: random.Random) -> Outcome:
    """One of two processes is killed; torchrun starts both again from the last checkpoint."""
    found = Outcome("a killed process under torchrun, started again from a checkpoint")
    script = folder / "train.py"
    script.write_text(WORK)
    for i in range(count):
        place = folder / str(i)
        place.mkdir()
        kill = draw.randrange(2, STEPS - 2)
        launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
        launch += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
        words = [str(script), str(place), str(kill), str(STEPS), str(SAVED)]
        command = [sys.executable, *launch, *words]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=300
        )
        found.note(_wrong(place, kill, done))
    return found


def _wrong(place: Path, kill: int, done: subprocess.CompletedProcess[str]) -> str | None:
    if done.returncode:
        return f"killed at {kill}: {done.stderr[-500:]}"
    steps = read(place / "run.db").steps
    return None if steps == list(range(STEPS)) else f"killed at {kill}: {steps}"
