"""Read the machine code of a kernel: its instructions with the compiler's own schedule, its loops.

Each instruction of NVIDIA's GPUs since sm_70 carries a control word. It says how many cycles the
warp waits before its next instruction, which of six scoreboards the instruction waits for, and
which it releases when its result is written or its operands are read.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

NO_BOARD = 7

_LABEL = re.compile(r"\s*(\.L\S+):")
_CODE = re.compile(
    r"\s*/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z0-9_]+(?:\.[A-Za-z0-9_]+)*)\s*(.*?);"
    r"\s*/\* 0x[0-9a-f]+ \*/"
)
_CONTROL = re.compile(r"\s*/\* (0x[0-9a-f]{16}) \*/")
_TARGET = re.compile(r"\((\.L\S+)\)")


@dataclass(frozen=True)
class Instruction:
    """One instruction: opcode with its modifiers, operands, guard, and its control word.

    `writes` and `reads` name the scoreboards that are released when the result is written and
    when the operands are read (NO_BOARD: none); `waits` are those that it waits for.
    """

    opcode: str
    operands: str = ""
    guard: str = ""
    stall: int = 1
    writes: int = NO_BOARD
    reads: int = NO_BOARD
    waits: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def skipped(self) -> bool:
        """Whether its guard is never true: such an instruction is issued and does nothing."""
        return self.guard == "@!PT"


class Loop(NamedTuple):
    """A backward branch: the instructions from its target to itself."""

    first: int
    last: int


@dataclass(frozen=True)
class Code:
    """The instructions of a kernel, and where its labels stand."""

    instructions: tuple[Instruction, ...]
    labels: dict[str, int]

    def body(self, loop: Loop) -> tuple[Instruction, ...]:
        """The instructions of a loop, its branch included."""
        return self.instructions[loop.first : loop.last + 1]


def parse(text: str) -> Code:
    """Read the output of `nvdisasm -hex -c`."""
    found: list[Instruction] = []
    labels: dict[str, int] = {}
    code: re.Match[str] | None = None
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        elif match := _CODE.match(line):
            code = match
        elif code and (control := _CONTROL.match(line)):
            guard, opcode, operands = (code[1] or "").strip(), code[2], code[3].strip()
            found.append(Instruction(opcode, operands, guard, *_schedule(int(control[1], 16))))
            code = None
    return Code(tuple(found), labels)


def _schedule(word: int) -> tuple[int, int, int, tuple[int, ...]]:
    """Stall, write and read scoreboard, and the scoreboards waited for, of a control word."""
    waits = tuple(board for board in range(6) if word >> 52 + board & 1)
    return word >> 41 & 15, word >> 46 & 7, word >> 49 & 7, waits


def loops(code: Code) -> list[Loop]:
    """The innermost loops. A branch to itself, as at the end of every kernel, is none."""
    found = []
    for place, instruction in enumerate(code.instructions):
        target = _TARGET.search(instruction.operands) if instruction.name == "BRA" else None
        start = code.labels.get(target[1], place) if target else place
        if start < place:
            found.append(Loop(start, place))
    return [loop for loop in found if not any(_inside(other, loop) for other in found)]


def _inside(inner: Loop, outer: Loop) -> bool:
    """Whether a loop lies in another one. Spins of a few instructions do not count."""
    within = outer.first <= inner.first and inner.last <= outer.last
    return inner != outer and within and inner.last - inner.first > 3
