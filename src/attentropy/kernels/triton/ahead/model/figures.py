"""What the model says of one compiled kernel: the loop that takes its time, run on a card."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from attentropy.kernels.triton.ahead.model.cards import QUARTERS, Card
from attentropy.kernels.triton.ahead.model.sass import Code, Instruction, loops
from attentropy.kernels.triton.ahead.model.simulator import cycles_per_turn
from attentropy.kernels.triton.ahead.model.units import Pipe, busy, products, unit_of

THREADS = 32


class Products(StrEnum):
    """How a kernel multiplies: which peak its products are measured by."""

    HALF = "half"
    TF32 = "tf32"
    FLOAT = "ieee"

    def rate(self, card: Card) -> float:
        """Multiply-adds per cycle of a quarter of a multiprocessor, at the peak."""
        if self is Products.FLOAT:
            return THREADS / card.float32
        return card.tensor / (1 if self is Products.HALF else 2)


@dataclass(frozen=True, kw_only=True)
class TurnWork:
    """What one turn of a loop has to do: pairs of query and key, and their products.

    `registers` and `shared` are those of a program, per thread and in bytes; `products` counts the
    multiply-adds of one pair, done in `kind`.
    """

    pairs: int
    products: int
    warps: int
    registers: int
    shared: int
    kind: Products = Products.HALF

    @property
    def needed(self) -> float:
        """Multiply-adds that a warp has to do."""
        return self.pairs * self.products / self.warps

    def done(self, body: Sequence[Instruction]) -> float:
        """Multiply-adds that a warp does in a loop."""
        return sum(products(x, fma=self.kind is Products.FLOAT) for x in body)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What the model says of a kernel.

    `percent` is the share of the peak of its kind of products, `limit` the unit that would be busy
    longest, `per_pair` the instructions that a pair takes of a thread, `waste` the products issued
    over those needed, and `programs` how many a multiprocessor holds.
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
    programs = card.resident(registers=work.registers, shared=work.shared, warps=work.warps)
    best = work.needed / work.kind.rate(card) * work.warps / QUARTERS
    cycles = cycles_per_turn(body, card, warps=work.warps, programs=programs) if programs else 0.0
    return Figures(
        percent=100 * best / cycles if programs else 0.0,
        limit=limit(body, card, work.warps),
        per_pair=len(body) / (work.pairs / (THREADS * work.warps)),
        waste=work.done(body) / work.needed,
        wgmma=any(unit_of(x) == Pipe.WGMMA for x in body),
        programs=programs,
    )


def main_loop(code: Code, work: TurnWork) -> tuple[Instruction, ...]:
    """The shortest loop that does all products of a turn: the one over tiles without an edge."""
    bodies = [code.body(loop) for loop in loops(code)]
    whole = [body for body in bodies if work.done(body) >= 0.99 * work.needed]
    if not whole:
        found = [round(work.done(body)) for body in bodies]
        raise LookupError(f"no loop multiplies {work.needed:.0f} per warp; loops multiply {found}")
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
