"""The figures of the GPUs that the model knows: rates of one multiprocessor, and its limits.

Rates are cycles that one warp instruction keeps a unit of a quarter of the multiprocessor busy.
Sources: NVIDIA's architecture papers for lanes per quarter (16 float32 lanes on GA100, 32 on
GH100; 16 integer and comparison lanes; 4 for exponentials), and published microbenchmarks for
latencies and for `mma.sync` on GH100, which reaches 63 % of the rate of `wgmma`.
"""

from dataclasses import dataclass

KB = 1024
QUARTERS = 4


@dataclass(frozen=True, kw_only=True)
class Card:
    """One kind of GPU.

    `tensor` counts bfloat16 multiply-adds per cycle and quarter; `mma` is the time of one
    `mma.sync` instruction. `flops` and `bandwidth` are the vendor's for dense bfloat16 products
    and for memory; `l2_bytes` passes from the second cache to one multiprocessor per cycle.
    """

    name: str
    arch: int
    float32: float
    tensor: int
    mma: float
    l2_latency: int
    l2_bytes: float
    shared: int
    clock: float
    processors: int
    flops: float
    bandwidth: float
    integer: float = 2.0
    special: float = 8.0
    shared_latency: int = 29
    barrier: int = 12
    registers: int = 65536
    warps: int = 64
    programs: int = 32

    @property
    def shared_per_program(self) -> int:
        """Bytes of shared memory that one program may have."""
        return self.shared - KB

    def resident(self, *, registers: int, shared: int, warps: int) -> int:
        """Programs that a multiprocessor holds at once; 0 if one does not fit at all.

        >>> CARDS[80].resident(registers=255, shared=48 * 1024, warps=4)
        2
        """
        if shared > self.shared_per_program:
            return 0
        per_warp = -(-max(registers, 1) // 8) * 8 * 32
        by_registers = self.registers // per_warp // warps
        by_shared = self.shared // (shared + KB)  # the system keeps 1 KB per program
        return min(by_registers, by_shared, self.programs, self.warps // warps)


A100 = Card(
    name="A100", arch=80, float32=2.0, tensor=256, mma=8.0, l2_latency=250, l2_bytes=40.0,
    shared=164 * KB, clock=1.41e9, processors=108, flops=312e12, bandwidth=2.0e12,
)  # fmt: skip
H100 = Card(
    name="H100", arch=90, float32=1.0, tensor=512, mma=6.4, l2_latency=280, l2_bytes=32.0,
    shared=228 * KB, clock=1.755e9, processors=132, flops=989e12, bandwidth=3.35e12,
)  # fmt: skip
CARDS = {card.arch: card for card in (A100, H100)}
