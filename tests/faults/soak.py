"""Monitoring for hours with a server and a reader attached: does memory stay flat?

    python -m tests.faults.soak --hours 2 --folder /tmp/soak

Prints, and writes to soak.json, the resident memory of the training process, of the server and of a
reader once a minute, and the slope of each in MB per hour with its standard error, the first quarter left out.
"""

import argparse
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import torch
from torch import nn

import attentropy as at
from attentropy.training.runstore import read
from attentropy.training.runstore.writer import RunStore


def resident(pid: int | str = "self") -> float:
    """Resident memory of a process in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def slope(hours: list[float], memory: list[float]) -> tuple[float, float]:
    """Least squares of memory on time and its standard error, in MB per hour."""
    keep = slice(len(hours) // 4, None)
    x, y = np.array(hours[keep]), np.array(memory[keep])
    x = x - x.mean()
    found = float(x @ y / (x @ x))
    rest = y - y.mean() - found * x
    return found, float(np.sqrt(rest @ rest / max(len(x) - 2, 1) / (x @ x)))


def serve(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """`attentropy serve` on the folder."""
    command = [sys.executable, "-m", "attentropy", "serve", str(folder), "--port", str(port)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


READER = """
import contextlib, sys, time
from attentropy.training.runstore import RunError, read
while True:
    time.sleep(30)
    with contextlib.suppress(RunError):  # it may not have begun yet
        print(len(read(sys.argv[1], most=500).steps), flush=True)
"""


def reader(run: Path) -> subprocess.Popen[bytes]:
    """A process that reads the run again and again, as `attentropy watch` does."""
    return subprocess.Popen([sys.executable, "-c", READER, str(run)], stdout=subprocess.DEVNULL)


def ask(port: int) -> int:
    """The size of the page of the run, as a browser that polls it would ask; 0 without answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/run/soak.db", timeout=20) as answer:
            return len(answer.read())
    except OSError:
        return 0


def soak(folder: Path, *, hours: float, pause: float, port: int = 8377) -> dict[str, object]:
    """Train a small model for hours, watched at every step, read and served meanwhile."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-4)
    server, other = serve(folder, port), reader(folder / "soak.db")
    begin = said = time.monotonic()
    when: list[float] = []
    memory: dict[str, list[float]] = {"training": [], "server": [], "reader": []}
    answers: list[int] = []
    step = 0
    with at.Monitor(model, every=1, loggers=[RunStore(folder / "soak")]) as monitor:
        while time.monotonic() - begin < 3600 * hours:
            x = torch.randn(4, 48, 32)
            loss = (model(x) - x.roll(1, 1)).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            monitor.step(loss=loss, step=step)
            step += 1
            time.sleep(pause)
            if time.monotonic() - said > min(60.0, 360 * hours):
                said = time.monotonic()
                answers.append(ask(port))
                when.append((said - begin) / 3600)
                memory["training"].append(resident())
                memory["server"].append(resident(server.pid))
                memory["reader"].append(resident(other.pid))
                now = {name: round(values[-1], 1) for name, values in memory.items()}
                print(f"{when[-1]:.2f} h, step {step}, MB {now}, page {answers[-1]}", flush=True)
    for process in (server, other):
        process.terminate()
        process.wait(10)
    kept = len(read(folder / "soak.db").steps)
    slopes = {name: slope(when, values) for name, values in memory.items()}
    return {"steps": step, "hours": hours, "slopes": slopes, "memory": memory, "kept": kept}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--pause", type=float, default=0.15, help="seconds between two steps")
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    found = soak(options.folder, hours=options.hours, pause=options.pause)
    (options.folder / "soak.json").write_text(json.dumps(found))
    print({name: value for name, value in found.items() if name != "memory"})


if __name__ == "__main__":
    main()
