"""What several processes cost and gain; run it on an idle machine.

    python -m benchmarks.processes scan
    python -m benchmarks.processes work
    python -m benchmarks.processes sample
    torchrun --nproc-per-node 2 -m benchmarks.processes monitor

`scan` times the passes of a scan by one process with one thread, by two, and by two scans of half
the text that never meet, which says what the machine itself gives to two. `work` counts processor
seconds instead, which a busy machine disturbs less: what several processes use together, beyond
their start, over what one uses, says how fast they would be on cores of their own. `monitor` times
training steps under DDP, ten with a Monitor that samples one of them and ten without, in turn, and
compares the medians of each step of the ten, so that a step that was interrupted does not count.
`sample` pairs sampled steps with others in a group of one process: what a sample costs the
processor, but for the message to others.
"""

import json
import os
import random
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
FEW = 1024  # tokens of a scan that measures its start


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


@main.command()
@click.option("--lengths", default="64,128")
@click.option("--tokens", default=16384)
@click.option("--processes", default=2)
@click.option("--rounds", default=2)
def work(lengths: str, tokens: int, processes: int, rounds: int) -> None:
    """Processor seconds of one process and of several, less those of a scan of a few tokens."""
    kinds = [(count, size) for count in (1, processes) for size in (FEW, tokens)]
    found = [[_used(*kind, lengths) for kind in kinds] for _ in range(rounds)]
    low, one, start, many = (min(column) for column in zip(*found, strict=True))
    click.echo(
        f"processor seconds: one process {one:.2f}, of which {low:.2f} to start; {processes} "
        f"processes {many:.2f}, of which {start:.2f} to start; least of {rounds} rounds"
    )
    ratio = (one - low) / (many - start)
    click.echo(
        f"work of one over work of {processes}: {ratio:.3f}; computed, not measured: on "
        f"{processes} cores of their own {processes * ratio:.2f} times as fast, with shares of "
        "equal size"
    )


def _used(processes: int, tokens: int, lengths: str) -> float:
    """Processor seconds of a scan and of all processes that it starts."""
    started = _started(processes, lengths, tokens)
    _, status, usage = os.wait4(started.process.pid, 0)
    started.folder.cleanup()
    if status:
        raise click.ClickException("a scan failed")
    return usage.ru_utime + usage.ru_stime


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
@click.option("--rounds", default=60)
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
    found: dict[bool, list[list[tuple[float, float]]]] = {True: [], False: []}
    for turn in range(rounds):
        for watched in (True, False) if turn % 2 else (False, True):
            steps = _steps(model, x, optimizer, watching if watched else None)
            if turn > 1:  # the first samples agree on names, and compare calls
                found[watched].append(steps)
    watching.close()
    if dist.get_rank() == 0:
        click.echo(
            f"{dist.get_world_size()} processes, {len(found[True])} rounds: a step takes "
            f"{1e3 * _median(found[False], 0) / EVERY:.2f} ms, "
            f"{1e3 * _median(found[False], 1) / EVERY:.2f} of the processor; "
            f"Monitor(every={EVERY}) costs {_share(found, 0)} of the time, "
            f"{_share(found, 1)} of the processor"
        )
    dist.barrier()
    dist.destroy_process_group()


@main.command()
@click.option("--pairs", default=100)
def sample(pairs: int) -> None:
    """Processor time of a sampled training step, less that of a plain one."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/x", rank=0, world_size=1)
        model = DistributedDataParallel(nn.Sequential(*(Layer(128) for _ in range(4))))
        optimizer = torch.optim.AdamW(model.parameters())
        watching = at.Monitor(model, every=1, loggers=[], alarms=[])
        watching.pause()
        x, more, plain = torch.randn(4, 128, 128), [], []
        for turn in range(pairs + EVERY):  # the first compare calls
            took = {}
            for watched in (True, False) if turn % 2 else (False, True):
                took[watched] = _step(model, x, optimizer, watching if watched else None)
            if turn >= EVERY:
                more.append(took[True] - took[False])
                plain.append(took[False])
        dist.destroy_process_group()
    extra, whole, chance = statistics.median(more), statistics.median(plain), random.Random(0)
    drawn = [statistics.median(chance.choices(more, k=pairs)) for _ in range(300)]
    error = statistics.stdev(drawn)
    click.echo(
        f"{pairs} pairs: a step uses {1e3 * whole:.2f} ms of the processor, a sampled one "
        f"{1e3 * extra:+.2f} ± {1e3 * error:.2f} ms: {extra / EVERY / whole:+.2%} ± "
        f"{error / EVERY / whole:.2%} at every={EVERY}"
    )


def _step(
    model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer, watching: at.Monitor | None
) -> float:
    """Processor seconds of one training step; a Monitor listens to it alone."""
    if watching is not None:
        watching.begin()
    began = time.process_time()
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    if watching is not None:
        watching.step(loss=loss)
    took = time.process_time() - began
    if watching is not None:
        watching.pause()
    return took


def _steps(
    model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer, watching: at.Monitor | None
) -> list[tuple[float, float]]:
    """Seconds of each of ten steps, and of the processor; the sample arrives within them."""
    if watching is not None:
        watching.begin()
    dist.barrier()
    took = []
    for _ in range(EVERY):
        began = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        if watching is not None:
            watching.step(loss=loss)
        took.append((time.perf_counter() - began[0], time.process_time() - began[1]))
    if watching is not None:
        watching.pause()
    return took


def _median(rounds: list[list[tuple[float, float]]], kind: int) -> float:
    """The sum over ten steps of the median of each."""
    steps = zip(*rounds, strict=True)
    return sum(statistics.median(one[kind] for one in step) for step in steps)


def _share(found: dict[bool, list[list[tuple[float, float]]]], kind: int) -> str:
    """What watching adds, as a share, with the standard error by drawing rounds again."""

    def share(chosen: list[int]) -> float:
        both = {watched: [rounds[i] for i in chosen] for watched, rounds in found.items()}
        return _median(both[True], kind) / _median(both[False], kind) - 1

    count, chance = len(found[True]), random.Random(0)
    drawn = [share(chance.choices(range(count), k=count)) for _ in range(200)]
    return f"{share(list(range(count))):+.2%} ± {statistics.stdev(drawn):.2%}"


if __name__ == "__main__":
    main()
