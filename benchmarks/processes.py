"""What several processes cost and gain; run it on an idle machine.

    python -m benchmarks.processes scan
    torchrun --nproc-per-node 2 -m benchmarks.processes monitor

`scan` times the passes of a scan by one process with one thread, by two, and by two scans of half
the text that never meet, which says what the machine itself gives to two. `monitor` times training
steps under DDP, ten with a Monitor that samples one of them and ten without, in turn; the figure is
the median over rounds of the difference, as a share of the step.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import attentropy as at

EVERY = 10


@click.group()
def main() -> None:
    """What several processes cost and gain."""


@main.command()
@click.option("--lengths", default="64,128")
@click.option("--tokens", default=32768)
@click.option("--processes", default=2)
@click.option("--rounds", default=4)
def scan(lengths: str, tokens: int, processes: int, rounds: int) -> None:
    """One process with one thread against several with one thread each, in turn."""
    kinds: dict[str, Callable[[], tuple[float, float]]] = {
        "one process": lambda: _read(_started(1, lengths, tokens)),
        f"{processes} processes": lambda: _read(_started(processes, lengths, tokens)),
        f"{processes} scans apart": lambda: _apart(processes, lengths, tokens),
    }
    found = [{name: run() for name, run in kinds.items()} for _ in range(rounds)]
    least = {n: [min(x) for x in zip(*(one[n] for one in found), strict=True)] for n in kinds}
    for name, (seconds, whole) in least.items():
        click.echo(f"{name}: {seconds:.2f} s of passes, {whole:.2f} s with loading")
    one, shared, apart = (seconds for seconds, _ in least.values())
    click.echo(
        f"passes: {one / shared:.3f} times as fast, by the least of {rounds} rounds; scans apart, "
        f"which never meet: {one / apart:.3f}, what this machine has; share {apart / shared:.1%}"
    )


class Started(NamedTuple):
    """A scan that runs: its process, its folder, and when it began."""

    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]
    began: float


def _apart(processes: int, lengths: str, tokens: int) -> tuple[float, float]:
    """Several scans at the same time, of a share of the tokens each: the slowest."""
    started = [_started(1, lengths, tokens // processes) for _ in range(processes)]
    found = [_read(one) for one in started]
    return max(seconds for seconds, _ in found), max(whole for _, whole in found)


def _started(processes: int, lengths: str, tokens: int) -> Started:
    many = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    folder = tempfile.TemporaryDirectory()
    text = Path(folder.name) / "text.txt"
    text.write_text("To be, or not to be, that is the question. " * (tokens // 40))
    command = ["-m", "attentropy", "scan", "--lengths", lengths, "--text", str(text), "--json"]
    command += ["--tokens-per-length", str(tokens), "--threads", "1", "--out", folder.name]
    launcher = many if processes > 1 else []
    began = time.perf_counter()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return Started(subprocess.Popen([sys.executable, *launcher, *command], **quiet), folder, began)


def _read(started: Started) -> tuple[float, float]:
    """Seconds of its passes, and of all of it."""
    if started.process.wait():
        raise click.ClickException("a scan failed")
    whole = time.perf_counter() - started.began
    with started.folder as folder:
        measures = json.loads((Path(folder) / "scan.json").read_text())["measures"]
        return sum(one["seconds"] for one in measures), whole


class Layer(nn.Module):
    """Causal attention and a perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        q, k, v = self.qkv(x).unflatten(-1, (3, 8, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


@main.command()
@click.option("--rounds", default=12)
@click.option("--width", default=128)
@click.option("--length", default=128)
def monitor(rounds: int, width: int, length: int) -> None:
    """A Monitor under DDP, at every=10."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*(Layer(width) for _ in range(4))))
    x = torch.randn(4, length, width)
    optimizer = torch.optim.AdamW(model.parameters())
    watching = at.Monitor(model, every=EVERY, loggers=[])
    shares, busy, steps = [], [], []
    for turn in range(rounds):
        times = {}
        for watched in (True, False) if turn % 2 else (False, True):
            times[watched] = _steps(model, x, optimizer, watching if watched else None)
        if turn > 1:  # the first samples agree on names, and compare calls
            shares.append(times[True][0] / times[False][0] - 1)
            busy.append(times[True][1] / times[False][1] - 1)
            steps.append(times[False][0] / EVERY)
    watching.close()
    if dist.get_rank() == 0:
        click.echo(
            f"{dist.get_world_size()} processes, step of {1e3 * statistics.median(steps):.1f} ms: "
            f"Monitor(every={EVERY}) costs {statistics.median(shares):+.2%} of the time "
            f"({min(shares):+.2%} to {max(shares):+.2%}), {statistics.median(busy):+.2%} of the "
            f"processor's ({min(busy):+.2%} to {max(busy):+.2%}), {len(shares)} rounds"
        )
    dist.barrier()
    dist.destroy_process_group()


def _steps(
    model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer, watching: at.Monitor | None
) -> tuple[float, float]:
    """Seconds of ten steps, and of the processor; the sample of one of them arrives within them."""
    if watching is not None:
        watching.begin()
    dist.barrier()
    began = time.perf_counter(), time.process_time()
    for _ in range(EVERY):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        if watching is not None:
            watching.step(loss=loss)
    dist.barrier()
    took = time.perf_counter() - began[0], time.process_time() - began[1]
    if watching is not None:
        watching.pause()
    return took


if __name__ == "__main__":
    main()
