"""Run the body of a loop on a model of one multiprocessor, in order, as its schedule says.

Several programs are resident. Each warp belongs to one of four quarters; a quarter issues one
instruction per cycle, and continues the same warp as long as that is ready. An instruction
waits for the stall of the one before it, for its scoreboards, and for its unit. Shared memory and
the second cache have one queue each for the whole multiprocessor.
"""

import re
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from attentropy.kernels.triton.ahead.model.cards import QUARTERS, Card
from attentropy.kernels.triton.ahead.model.sass import NO_BOARD, Instruction
from attentropy.kernels.triton.ahead.model.units import Pipe, busy, unit_of

NEVER = float("inf")
# cycles from issue to result
ALU_LATENCY = 6
SPECIAL_LATENCY = 14
MMA_LATENCY = 33
WGMMA_LATENCY = 20
SHUFFLE_LATENCY = 22
# a quarter hands one memory instruction over every two cycles, and shared memory takes it later
HANDOVER = 2
QUEUE = 4


class Sync(IntEnum):
    """What an instruction waits for, or closes, beside scoreboards."""

    NOTHING = 0
    BARRIER = 1
    COMMIT_COPIES = 2
    AWAIT_COPIES = 3
    AWAIT_PRODUCTS = 4


class Step(NamedTuple):
    """An instruction as the simulator needs it."""

    unit: Pipe
    busy: float
    stall: int
    writes: int
    reads: int
    waits: tuple[int, ...]
    sync: Sync
    depth: int
    copies: bool
    stores: bool
    commits: bool


def step(instruction: Instruction, card: Card) -> Step:
    """Everything about an instruction that does not change from turn to turn."""
    sync, depth = _sync(instruction)
    return Step(
        unit=unit_of(instruction),
        busy=busy(instruction, card),
        stall=max(1, instruction.stall),
        writes=instruction.writes,
        reads=instruction.reads,
        waits=instruction.waits,
        sync=sync,
        depth=depth,
        copies=instruction.name == "LDGSTS",
        stores=instruction.name in ("STS", "STSM"),
        commits="gsb0" in instruction.operands,
    )


def _sync(instruction: Instruction) -> tuple[Sync, int]:
    """How it synchronises, and how many groups may stay under way."""
    name, operands = instruction.name, instruction.operands
    if name == "BAR" and "ARV" not in instruction.opcode:
        return Sync.BARRIER, 0
    if name == "LDGDEPBAR":
        return Sync.COMMIT_COPIES, 0
    if name == "DEPBAR" and (found := re.search(r"SB0, (0x[0-9a-f]+)", operands)):
        return Sync.AWAIT_COPIES, int(found[1], 16)
    if instruction.opcode.startswith("WARPGROUP.DEPBAR"):
        found = re.search(r"gsb\d, (0x[0-9a-f]+)", operands)
        return Sync.AWAIT_PRODUCTS, int(found[1], 16) if found else 0
    return Sync.NOTHING, 0


@dataclass(eq=False, slots=True)
class Warp:
    """Where a warp stands, and when what it started is done."""

    program: int
    ready: float
    place: int = 0
    turns: int = 0
    waiting: bool = False
    boards: list[float] = field(default_factory=lambda: [0.0] * NO_BOARD)
    copies: deque[float] = field(default_factory=deque)
    open_copies: float = 0.0
    products: deque[float] = field(default_factory=deque)


@dataclass(eq=False, slots=True)
class Quarter:
    """The units of a quarter: when each is free again."""

    warps: list[Warp]
    free: dict[Pipe, float]
    handover: float = 0.0
    last: Warp | None = None


class Multiprocessor:
    """The state of a run. `advance` issues what can be issued in one cycle."""

    def __init__(self, steps: list[Step], card: Card, *, warps: int, programs: int) -> None:
        self.steps, self.card, self.warps_per_program = steps, card, warps
        # programs do not start together: spread them over one turn
        self.warps = [
            Warp(program, program * len(steps) / programs)
            for program in range(programs)
            for _ in range(warps)
        ]
        self.quarters = [
            Quarter(self.warps[n::QUARTERS], dict.fromkeys(Pipe, 0.0)) for n in range(QUARTERS)
        ]
        self.shared = self.l2 = self.now = 0.0
        self.turns = 0
        self.at_barrier: dict[int, list[Warp]] = {n: [] for n in range(programs)}

    def advance(self) -> None:
        """Issue at most one instruction per quarter, and move time on."""
        issued, soonest = False, NEVER
        for quarter in self.quarters:
            warp, when = self._next(quarter)
            if warp is None:
                soonest = min(soonest, when)
            else:
                self._issue(quarter, warp)
                issued = True
        if not issued and soonest == NEVER:
            raise RuntimeError("the warps of the simulated loop wait for each other")
        self.now = self.now + 1 if issued else max(soonest, self.now + 1e-9)

    def _next(self, quarter: Quarter) -> tuple[Warp | None, float]:
        """A warp that can issue now, the last one first; else when one can."""
        soonest = NEVER
        if quarter.last is not None:
            when = self._possible(quarter, quarter.last)
            if when <= self.now:
                return quarter.last, when
            soonest = when
        for warp in quarter.warps:
            if warp is not quarter.last:
                when = self._possible(quarter, warp)
                if when <= self.now:
                    return warp, when
                soonest = min(soonest, when)
        return None, soonest

    def _possible(self, quarter: Quarter, warp: Warp) -> float:
        """When a warp can issue its next instruction, as far as is known now."""
        if warp.waiting:
            return NEVER
        if warp.ready > self.now:
            return warp.ready
        step = self.steps[warp.place]
        when = self.now
        for board in step.waits:
            when = max(when, warp.boards[board])
        if step.sync == Sync.AWAIT_COPIES:
            when = max(when, _done(warp.copies, step.depth))
        elif step.sync == Sync.AWAIT_PRODUCTS:
            when = max(when, _done(warp.products, step.depth))
        if step.unit in _MEMORY:
            return max(when, quarter.handover)
        return when if step.unit == Pipe.WGMMA else max(when, quarter.free[step.unit])

    def _issue(self, quarter: Quarter, warp: Warp) -> None:
        step, quarter.last = self.steps[warp.place], warp
        written, read = self._execute(quarter, warp, step)
        if step.writes < NO_BOARD:
            warp.boards[step.writes] = max(warp.boards[step.writes], written)
        if step.reads < NO_BOARD:
            warp.boards[step.reads] = max(warp.boards[step.reads], read)
        warp.ready = self.now + step.stall
        self._synchronise(warp, step)
        warp.place += 1
        if warp.place == len(self.steps):
            warp.place, warp.turns = 0, warp.turns + 1
            self.turns += 1

    def _execute(self, quarter: Quarter, warp: Warp, step: Step) -> tuple[float, float]:
        """Occupy the unit; when the result is written, and when the operands are read."""
        now = self.now
        match step.unit:
            case Pipe.NONE | Pipe.BULK:
                return now + ALU_LATENCY, now + QUEUE
            case Pipe.WGMMA:
                quarter.free[Pipe.TENSOR] = max(now, quarter.free[Pipe.TENSOR]) + step.busy
                if step.commits:
                    warp.products.append(quarter.free[Pipe.TENSOR] + WGMMA_LATENCY)
                return now + ALU_LATENCY, now + QUEUE
            case Pipe.SHARED | Pipe.SHUFFLE:
                return self._through_shared(quarter, step)
            case Pipe.GLOBAL:
                return self._through_l2(quarter, warp, step)
        quarter.free[step.unit] = now + step.busy
        latency = {Pipe.SPECIAL: SPECIAL_LATENCY + step.busy, Pipe.TENSOR: MMA_LATENCY}
        return now + latency.get(step.unit, ALU_LATENCY), now + QUEUE

    def _through_shared(self, quarter: Quarter, step: Step) -> tuple[float, float]:
        quarter.handover = self.now + HANDOVER
        start = max(self.now + QUEUE, self.shared)
        self.shared = start + step.busy
        if step.unit == Pipe.SHUFFLE:
            return start + SHUFFLE_LATENCY, start + QUEUE
        latency = 10 if step.stores else self.card.shared_latency
        return self.shared + latency, start + 6

    def _through_l2(self, quarter: Quarter, warp: Warp, step: Step) -> tuple[float, float]:
        quarter.handover = self.now + HANDOVER
        self.l2 = max(self.now, self.l2) + step.busy
        arrival = self.l2 + self.card.l2_latency
        if step.copies:
            warp.open_copies = max(warp.open_copies, arrival)
        return arrival, self.now + 20

    def _synchronise(self, warp: Warp, step: Step) -> None:
        match step.sync:
            case Sync.BARRIER:
                self._arrive(warp)
            case Sync.COMMIT_COPIES:
                warp.copies.append(max(warp.open_copies, self.now))
                warp.open_copies = 0.0
            case Sync.AWAIT_COPIES:
                _drop(warp.copies, step.depth)
            case Sync.AWAIT_PRODUCTS:
                _drop(warp.products, step.depth)

    def _arrive(self, warp: Warp) -> None:
        """Wait for the other warps of the program; the last one frees all of them."""
        there = self.at_barrier[warp.program]
        there.append(warp)
        warp.waiting = len(there) < self.warps_per_program
        if not warp.waiting:
            for one in there:
                one.waiting = False
                one.ready = max(one.ready, self.now + self.card.barrier)
            there.clear()


_MEMORY = {Pipe.SHARED, Pipe.SHUFFLE, Pipe.GLOBAL}


def _done(groups: deque[float], depth: int) -> float:
    """When all but the last `depth` groups are complete."""
    return max((groups[n] for n in range(len(groups) - depth)), default=0.0)


def _drop(groups: deque[float], depth: int) -> None:
    while len(groups) > depth:
        groups.popleft()


def cycles_per_turn(
    body: tuple[Instruction, ...], card: Card, *, warps: int, programs: int, turns: int = 12
) -> float:
    """Cycles that one program needs for one turn of the loop, while `programs` share the processor.

    Measured from when every warp has done six turns until every one has done `turns` more; those
    that are ahead go on meanwhile, so that the multiprocessor stays full.
    """
    run = Multiprocessor([step(x, card) for x in body], card, warps=warps, programs=programs)
    start = _until(run, 6)
    end = _until(run, 6 + turns)
    return warps * (end[0] - start[0]) / (end[1] - start[1])


def _until(run: Multiprocessor, turns: int) -> tuple[float, int]:
    """Go on until every warp has done so many turns; the time, and the turns of all warps."""
    while min(warp.turns for warp in run.warps) < turns:
        run.advance()
    return run.now, run.turns
