"""What the model says of one compiled kernel: the loop that takes its time, run on a card."""

from collections.abc import Sequence
from dataclasses import dataclass

from attentropy.kernels.triton.ahead.model.cards import QUARTERS, Card
from attentropy.kernels.triton.ahead.model.sass import Code, Instruction, loops
from attentropy.kernels.triton.ahead.model.simulator import cycles_per_turn
from attentropy.kernels.triton.ahead.model.units import Pipe, busy, products, unit_of

THREADS = 32


@dataclass(frozen=True, kw_only=True)
class TurnWork:
    """What one turn of a loop has to do: pairs of query and key, and their products.

    `registers` and `shared` are those of a program, per thread and in bytes; `products` counts the
    multiply-adds of one pair.
    """

    pairs: int
    products: int
    warps: int
    registers: int
    shared: int


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What the model says of a kernel.

    `percent` is the share of the tensor peak, `limit` the unit that would be busy longest,
    `per_pair` the instructions that a pair takes of a thread, `waste` the products issued over
    those needed, and `programs` how many a multiprocessor holds.
    """

    percent: float
    limit: str
    per_pair: float
    waste: float
    wgmma: bool
    programs: int


def figures(code: Code, card: Card, work: TurnWork) -> Figures:
    """Run the loop over whole tiles on a card.

    Args:
        code: machine code of the kernel.
        card: the GPU.
        work: what a turn of the loop has to do.
    """
    body = main_loop(code, work)
    needed = work.pairs * work.products / work.warps
    programs = card.resident(registers=work.registers, shared=work.shared, warps=work.warps)
    best = needed / card.tensor * work.warps / QUARTERS
    cycles = cycles_per_turn(body, card, warps=work.warps, programs=programs) if programs else 0.0
    return Figures(
        percent=100 * best / cycles if programs else 0.0,
        limit=limit(body, card, work.warps),
        per_pair=len(body) / (work.pairs / (THREADS * work.warps)),
        waste=sum(products(x) for x in body) / needed,
        wgmma=any(unit_of(x) == Pipe.WGMMA for x in body),
        programs=programs,
    )


def main_loop(code: Code, work: TurnWork) -> tuple[Instruction, ...]:
    """The shortest loop that does all products of a turn: the one over tiles without an edge."""
    needed = work.pairs * work.products / work.warps
    bodies = [code.body(loop) for loop in loops(code)]
    whole = [body for body in bodies if sum(products(x) for x in body) >= 0.99 * needed]
    if not whole:
        found = [round(sum(products(x) for x in body)) for body in bodies]
        raise LookupError(f"no loop multiplies {needed:.0f} per warp; loops multiply {found}")
    return min(whole, key=len)


def limit(body: Sequence[Instruction], card: Card, warps: int) -> str:
    """The unit that one turn keeps busy longest."""
    times = {"issue": len(body) * warps / QUARTERS}
    for instruction in body:
        unit = unit_of(instruction)
        # a quarter has units of its own; shared memory and the cache serve all four
        common = unit in (Pipe.SHARED, Pipe.SHUFFLE, Pipe.GLOBAL)
        name = _NAMES.get(unit, str(unit))
        times[name] = times.get(name, 0.0) + busy(instruction, card) * warps / (
            1 if common else QUARTERS
        )
    return max(times, key=lambda name: times[name])


_NAMES = {Pipe.WGMMA: "tensor", Pipe.SHUFFLE: "shared", Pipe.GLOBAL: "cache", Pipe.BULK: "cache"}
