"""How many warps of a program fit on a multiprocessor, by NVIDIA's allocation rules."""

from dataclasses import dataclass

KB = 1024


@dataclass(frozen=True)
class Processor:
    """Limits of one multiprocessor, and the peak rates of a card that has it.

    Rates are the vendor's for dense bfloat16 products (flop/s) and memory (bytes/s).
    """

    name: str
    shared: int
    shared_per_program: int
    flops: float
    bandwidth: float
    warps: int = 64
    programs: int = 32
    registers: int = 65536


PROCESSORS = {
    80: Processor("sm_80 (A100)", 164 * KB, 163 * KB, 312e12, 2.0e12),
    90: Processor("sm_90 (H100)", 228 * KB, 227 * KB, 989e12, 3.35e12),
    100: Processor("sm_100 (B200)", 228 * KB, 227 * KB, 2250e12, 8.0e12),
}


def resident_warps(*, arch: int, registers: int, shared: int, warps: int) -> int:
    """Warps that are resident at once; 0 if a program does not fit at all.

    >>> resident_warps(arch=80, registers=255, shared=48 * 1024, warps=4)
    8
    """
    processor = PROCESSORS[arch]
    if shared > processor.shared_per_program:
        return 0
    per_warp = -(-max(registers, 1) // 8) * 8 * 32
    by_registers = processor.registers // per_warp // warps
    by_shared = processor.shared // (shared + KB)  # the system keeps 1 KB per program
    return warps * min(by_registers, by_shared, processor.programs, processor.warps // warps)
