"""Measure contenders against the first of them: interleaved, alternating order, medians.

A case is refused if a contender differs from the float64 reference by more than torch's own
attention does.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attentropy.attention.attend import attend
from attentropy.core.errors import AttentropyError
from attentropy.lab.bench import cuda
from attentropy.lab.bench.contenders import BenchCase, Contender, available, eager
from attentropy.lab.bench.memory import peak_extra
from attentropy.lab.bench.peak import fma_peak, operations
from attentropy.lab.bench.table import BARS


@dataclass(frozen=True)
class BenchResult:
    """One contender on one case."""

    case: str
    contender: str
    seconds: float
    ratio: float  # of the medians of wall time
    cpu_ratio: float  # of the medians of CPU time, steadier on a shared machine
    extra_mib: float | None
    bar: float | None = None
    peak_share: float | None = None  # by CPU time
    predicted: float | None = None  # seconds, by the model of the card


def measure(
    case: BenchCase,
    *,
    repeat: int,
    memory: bool,
    seconds: float = 60.0,
    only: Sequence[str] = (),
    missing: Callable[[str], None] = lambda reason: None,
) -> Iterator[BenchResult]:
    """Time the available contenders on a case, after checking that each is right.

    Args:
        case: shape, precision and mask.
        repeat: largest number of rounds.
        memory: measures peak memory too.
        seconds: time after which no further round starts.
        only: names of contenders to keep besides sdpa; all if empty.
        missing: called with a sentence for each contender that this GPU cannot run.
    """
    on_card = case.device == "cuda"
    runs = {n: run for n, run in available(case).items() if not only or n in ("sdpa", *only)}
    runs = _checked(runs, case, missing)
    tensors = case.tensors()
    calls = {n: _once(run, tensors, case) for n, run in runs.items()}
    wait = torch.cuda.synchronize if on_card else _nothing
    taken = interleaved(calls, repeat, seconds=seconds, wait=wait)
    base = taken["sdpa"].median()
    for name, call in calls.items():
        took = taken[name].median()
        extra = (cuda.peak_extra if on_card else peak_extra)(call) if memory else None
        ratios = took.wall / base.wall, took.cpu / base.cpu
        result = BenchResult(label(case), name, took.wall, *ratios, extra)
        if name == "triton" and on_card:
            result = replace(result, predicted=cuda.predicted(case))
        yield _judged(result, case, took.cpu) if name == "fused" else result


def _judged(result: BenchResult, case: BenchCase, cpu: float) -> BenchResult:
    """Add the bar of the case, and the share of the peak where the peak is known."""
    peak = fma_peak() if case.dtype == torch.float32 else None
    share = None if peak is None else operations(case) / cpu / peak
    return replace(result, bar=BARS.get(case), peak_share=share)


def _checked(
    runs: dict[str, Contender], case: BenchCase, missing: Callable[[str], None]
) -> dict[str, Contender]:
    """The contenders that are right; on a GPU, without those that this card or build lacks."""
    found = {}
    for name, run in runs.items():
        try:
            check(name, run, case)
        except RuntimeError as error:
            if case.device == "cpu" or name == "sdpa":
                raise
            missing(f"{label(case)}: without {name}: {str(error).splitlines()[0]}")
        else:
            found[name] = run
    return found


class Times(NamedTuple):
    """Seconds of wall time, and of CPU time over all threads."""

    wall: float
    cpu: float


@dataclass
class Timings:
    """The times of one contender."""

    times: list[Times]

    def median(self) -> Times:
        """Median of the wall times, and median of the CPU times."""
        wall, cpu = zip(*self.times, strict=True)
        return Times(statistics.median(wall), max(statistics.median(cpu), 1e-9))


def label(case: BenchCase) -> str:
    """The case in words, as tables show it.

    Args:
        case: shape, precision and mask.
    """
    size = ",".join(str(n) for n in case[:4])
    kind = str(case.dtype).removeprefix("torch.")
    shape = f"window {case.window}" if case.window else "causal" if case.causal else "full"
    if case.queries:
        shape = f"{case.queries} query"
    device = "" if case.device == "cpu" else f" {case.device}"
    return f"({size}) {kind} {'fwd+bwd' if case.backward else 'fwd'} {shape}{device}"


def _nothing() -> None:
    """Return at once: a CPU has finished when the call returns."""


def interleaved(
    calls: dict[str, Callable[[], None]],
    repeat: int,
    *,
    seconds: float = 60.0,
    wait: Callable[[], None] = _nothing,
) -> dict[str, Timings]:
    """Times of every call, taken in turns whose order alternates.

    Calls of microseconds are repeated within a round. There are three rounds at least.

    Args:
        calls: what is measured, by name.
        repeat: largest number of rounds.
        seconds: time after which no further round starts.
        wait: returns when the device has finished.
    """
    taken = {name: Timings([]) for name in calls}
    inner = {name: max(1, int(2e-3 / _timed(call, 1, wait).wall)) for name, call in calls.items()}
    order, start = list(calls), time.perf_counter()
    for done in range(repeat):
        if done >= min(3, repeat) and time.perf_counter() - start > seconds:
            break
        for name in order:
            taken[name].times.append(_timed(calls[name], inner[name], wait))
        order.reverse()
    return taken


def _timed(call: Callable[[], None], count: int, wait: Callable[[], None]) -> Times:
    wait()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        call()
    wait()
    return Times((time.perf_counter() - wall) / count, (time.process_time() - cpu) / count)


def _once(
    run: Contender, tensors: tuple[Tensor, Tensor, Tensor], case: BenchCase
) -> Callable[[], None]:
    def forward() -> None:
        with torch.no_grad():
            run(*tensors, case)

    def both() -> None:
        out, entropy = run(*tensors, case)
        loss = out.sum() if entropy is None else out.sum() + entropy.sum()
        torch.autograd.grad(loss, tensors)

    return both if case.backward else forward


def check(name: str, run: Contender, case: BenchCase) -> None:
    """Raise unless a contender gives the reference's output and entropy on a small case.

    Args:
        name: of the contender, for the message.
        run: the contender.
        case: shape, precision and mask.
    """
    small = case._replace(batch=1, heads=1, length=min(case.length, 160), backward=False)
    small = small._replace(window=min(case.window, 40))
    tensors = small.tensors()
    want = attend(*(x.double() for x in tensors), mask=small.mask, kernel="reference")
    out, entropy = run(*tensors, small)
    # four times the error of the full matrix computed in the same precision
    naive = (eager(*tensors, small)[0].double() - want.out).abs().max()
    allowed = 4 * max(naive.item(), torch.finfo(case.dtype).eps)
    if not torch.allclose(out.double(), want.out, atol=allowed, rtol=0):
        raise AttentropyError(f"{name} is wrong on {label(small)}: not measured")
    exact = want.stats.entropy
    if entropy is not None and exact is not None:
        allowed = 2e-6 if case.dtype == torch.float32 else 4 * torch.finfo(case.dtype).eps
        if not torch.allclose(entropy.double(), exact, atol=allowed, rtol=0):
            raise AttentropyError(f"entropy of {name} is wrong on {label(small)}: not measured")


def as_json(results: list[BenchResult], *, device: str = "cpu") -> dict[str, Any]:
    """Results with the machine they were taken on.

    Args:
        results: what measure() gave.
        device: "cpu" or "cuda".
    """
    from attentropy.lab.bench.machine import describe

    machine = describe() | (cuda.describe() if device == "cuda" else {})
    return {"machine": machine, "results": [asdict(r) for r in results]}
