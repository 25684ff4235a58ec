"""Measure contenders against the first of them: interleaved, alternating order, medians.

A case is refused if a contender disagrees with the float64 reference beyond what torch's own
attention allows itself.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from attentropy.attention import attend
from attentropy.bench.contenders import Case, Run, available
from attentropy.bench.memory import peak_extra
from attentropy.errors import AttentropyError
from attentropy.masks import causal as causal_mask


@dataclass(frozen=True)
class Result:
    """One contender on one case."""

    case: str
    contender: str
    seconds: float
    ratio: float
    extra_mib: float | None


def measure(case: Case, *, repeat: int, memory: bool) -> Iterator[Result]:
    """Time every available contender on a case, after checking that each is right."""
    runs = available(case)
    tensors = case.tensors()
    for name, run in runs.items():
        check(name, run, case)
    seconds = interleaved({n: _once(run, tensors, case) for n, run in runs.items()}, repeat)
    base = statistics.median(seconds["sdpa"])
    for name, run in runs.items():
        took = statistics.median(seconds[name])
        extra = peak_extra(_once(run, tensors, case)) if memory else None
        yield Result(label(case), name, took, took / base, extra)


def label(case: Case) -> str:
    """A case in words."""
    size = ",".join(str(n) for n in case[:4])
    kind = str(case.dtype).removeprefix("torch.")
    shape = "causal" if case.causal else "full"
    return f"({size}) {kind} {'fwd+bwd' if case.backward else 'fwd'} {shape}"


def interleaved(calls: dict[str, Callable[[], None]], repeat: int) -> dict[str, list[float]]:
    """Seconds of every call, taken in turns whose order alternates."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    order = list(calls)
    for _ in range(repeat):
        for name in order:
            start = time.perf_counter()
            calls[name]()
            taken[name].append(time.perf_counter() - start)
        order.reverse()
    return taken


def _once(run: Run, tensors: tuple[Tensor, Tensor, Tensor], case: Case) -> Callable[[], None]:
    def forward() -> None:
        with torch.no_grad():
            run(*tensors, case)

    def both() -> None:
        out, entropy = run(*tensors, case)
        loss = out.sum() if entropy is None else out.sum() + entropy.sum()
        torch.autograd.grad(loss, tensors)

    return both if case.backward else forward


def check(name: str, run: Run, case: Case) -> None:
    """Raise unless a contender gives the reference's output and entropy on a small case."""
    small = case._replace(batch=1, heads=1, length=min(case.length, 160), backward=False)
    tensors = small.tensors()
    mask = causal_mask if case.causal else None
    want = attend(*(x.double() for x in tensors), mask=mask, kernel="reference")
    out, entropy = run(*tensors, small)
    allowed = 4 * torch.finfo(case.dtype).eps
    if not torch.allclose(out.double(), want.out, atol=allowed, rtol=4 * allowed):
        raise AttentropyError(f"{name} is wrong on {label(small)}: not measured")
    exact = want.stats.entropy
    if entropy is not None and exact is not None:
        allowed = 2e-6 if case.dtype == torch.float32 else 4 * torch.finfo(case.dtype).eps
        if not torch.allclose(entropy.double(), exact, atol=allowed, rtol=0):
            raise AttentropyError(f"entropy of {name} is wrong on {label(small)}: not measured")


def as_json(results: list[Result]) -> dict[str, Any]:
    """Results with the machine they were taken on."""
    from attentropy.bench.machine import describe

    return {"machine": describe(), "results": [asdict(r) for r in results]}
