"""Which unit executes an instruction, for how long, and how much it multiplies."""

import re
from enum import StrEnum

from attentropy.kernels.triton.ahead.model.cards import QUARTERS, Card
from attentropy.kernels.triton.ahead.model.sass import Instruction


class Pipe(StrEnum):
    """The parts of a multiprocessor that instructions wait for."""

    TENSOR = "tensor"
    WGMMA = "wgmma"
    FLOAT = "float"
    INTEGER = "integer"
    SPECIAL = "special"
    SHARED = "shared"
    SHUFFLE = "shuffle"
    GLOBAL = "global"
    BULK = "bulk"
    NONE = "none"


_FLOAT = {"FFMA", "FMUL", "FADD", "IMAD", "FFMA2", "HFMA2", "HADD2", "HMUL2", "IMUL"}
_INTEGER = {
    "FMNMX", "FMNMX3", "FSEL", "FSETP", "FSET", "FCHK", "F2FP", "ISETP", "IADD", "IADD3", "IABS",
    "IMNMX", "VIMNMX", "VIADD", "LOP", "LOP3", "PLOP3", "LEA", "SHF", "SEL", "MOV", "PRMT",
    "SGXT", "BMSK", "I2FP", "VOTE", "P2R", "R2P", "CS2R",
}  # fmt: skip
_UNITS = {
    "HMMA": Pipe.TENSOR, "HGMMA": Pipe.WGMMA, "SHFL": Pipe.SHUFFLE, "UTMALDG": Pipe.BULK,
    "LDG": Pipe.GLOBAL, "LD": Pipe.GLOBAL, "LDGSTS": Pipe.GLOBAL,
    **dict.fromkeys(("LDS", "LDSM", "STS", "STSM", "LDL", "STL"), Pipe.SHARED),
    **dict.fromkeys(("MUFU", "F2F", "I2F", "F2I", "POPC", "FRND"), Pipe.SPECIAL),
    **dict.fromkeys(_FLOAT, Pipe.FLOAT),
    **dict.fromkeys(_INTEGER, Pipe.INTEGER),
}  # fmt: skip
_SHAPE = re.compile(r"\.(\d+)x(\d+)x(\d+)\.")
# multiply-adds of one mma.sync, by its shape
_MMA = {"16816": 16 * 8 * 16, "1688": 16 * 8 * 8, "1684": 16 * 8 * 4}


def unit_of(instruction: Instruction) -> Pipe:
    """The unit that executes an instruction; NONE for what only takes its turn."""
    return Pipe.NONE if instruction.skipped else _UNITS.get(instruction.name, Pipe.NONE)


def spills(instruction: Instruction) -> bool:
    """Whether it moves a register to or from local memory."""
    return instruction.name in ("LDL", "STL")


def bytes_per_thread(instruction: Instruction) -> int:
    """Bytes that a load or store moves for each thread."""
    found = re.search(r"\.(128|64)\b", instruction.opcode)
    return int(found[1]) // 8 if found else 4


def busy(instruction: Instruction, card: Card) -> float:
    """Cycles that the instruction keeps its unit from the next one."""
    match unit_of(instruction):
        case Pipe.TENSOR:
            return card.mma
        case Pipe.WGMMA:
            return _wgmma_cycles(instruction, card)
        case Pipe.FLOAT:
            return 2.0 if instruction.name == "IMAD" else card.float32
        case Pipe.INTEGER:
            return card.integer
        case Pipe.SPECIAL:
            return card.special
        case Pipe.SHARED:
            return _shared_cycles(instruction)
        case Pipe.SHUFFLE:
            return 1.0
        case Pipe.GLOBAL:
            return 32 * bytes_per_thread(instruction) / card.l2_bytes
    return 0.0


def _shared_cycles(instruction: Instruction) -> float:
    """One cycle for each 128 bytes: a matrix load moves as many 8 x 8 matrices as it names."""
    if instruction.name in ("LDSM", "STSM"):
        last = instruction.opcode[-1]
        return float(last) if last in "124" else 1.0
    return bytes_per_thread(instruction) / 4


def _wgmma_cycles(instruction: Instruction, card: Card) -> float:
    """The longer of multiplying and of reading the operands that lie in shared memory."""
    m, n, k = _wgmma_shape(instruction)
    wide = 4 if "TF32" in instruction.opcode else 2
    rows = m if instruction.operands.split(",")[1].strip().startswith("gdesc") else 0
    multiplying = m * n * k * (wide / 2) / QUARTERS / card.tensor
    return max(multiplying, (rows + n) * k * wide / 128)


def _wgmma_shape(instruction: Instruction) -> tuple[int, int, int]:
    found = _SHAPE.search(instruction.opcode)
    if found is None:
        raise ValueError(f"the opcode {instruction.opcode} names no shape")
    m, n, k = (int(size) for size in found.groups())
    return m, n, k


def products(instruction: Instruction, *, fma: bool = False) -> float:
    """Multiply-adds that one warp contributes; four warps share those of a wgmma.

    Args:
        instruction: of a warp.
        fma: count those of the float32 units in place of the tensor cores'.
    """
    if fma:
        return 32.0 if instruction.name == "FFMA" else 0.0
    if instruction.name == "HMMA":
        return float(_MMA.get(instruction.opcode.split(".")[1], 0))
    if instruction.name == "HGMMA":
        m, n, k = _wgmma_shape(instruction)
        return m * n * k / QUARTERS
    return 0.0
