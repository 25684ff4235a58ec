"""How far does a ring scale? A model on paper for 8 to 1024 GPUs; every figure is computed.

One rank holds m = n / R tokens. A hop moves B Hk m (D + Dv) numbers to the next rank while the
rank works on the block that it has: under a causal mask and in the zig-zag layout half of the
H m^2 pairs of a block, D + Dv multiply-adds each forward, and 3.5 times that backward (the block
is computed again, 1, and differentiated, 2.5).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Achieved speed of attention (flop/s), of a link (bytes/s each way), and start-up of a hop."""

    flops: float = 400e12
    bandwidth: float = 50e9
    latency: float = 20e-6


@dataclass(frozen=True)
class Model:
    """Heads of queries and keys, their width, bytes of a number and of a gradient; batch 1."""

    heads: int = 32
    key_heads: int = 8
    width: int = 128
    size: int = 2
    gradient: int = 4


def block_bytes(model: Model, tokens: int, *, size: int) -> float:
    """Bytes of the keys and values of a block."""
    return model.key_heads * tokens * 2 * model.width * size


def hop(model: Model, machine: Machine, tokens: int, *, backward: bool) -> tuple[float, float]:
    """Seconds of work on a block, and of its journey."""
    pairs = model.heads * tokens**2 / 2
    work = pairs * 2 * (2 * model.width) * (3.5 if backward else 1.0) / machine.flops
    size = model.size + (model.gradient if backward else 0)
    return work, block_bytes(model, tokens, size=size) / machine.bandwidth + machine.latency


def least_tokens(model: Model, machine: Machine) -> float:
    """m from which a hop is hidden behind work: (Hk / H) * size * flops / bandwidth."""
    return model.key_heads / model.heads * model.size * machine.flops / machine.bandwidth


def efficiency(model: Model, machine: Machine, tokens: int, ranks: int) -> float:
    """Work over time, forward and backward: every hop takes the longer of work and journey."""
    useful = spent = 0.0
    for backward in (False, True):
        work, journey = hop(model, machine, tokens, backward=backward)
        useful += ranks * work
        spent += work + (ranks - 1) * max(work, journey)
        spent += (
            journey if backward else 0.0
        )  # the last gradient comes home with nothing to hide it
    return useful / spent


def main() -> None:
    model = Model()
    links = {"450 GB/s": Machine(bandwidth=450e9), "50 GB/s": Machine(bandwidth=50e9)}
    for name, machine in links.items():
        print(f"{name}: hops are hidden from {least_tokens(model, machine):.0f} tokens per rank")
    print("| GPUs | tokens | per rank | MB per hop, forward | backward | 450 GB/s | 50 GB/s |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for length in (131_072, 1_048_576, 8_388_608):
        for ranks in (8, 64, 256, 1024):
            m = length // ranks
            forward, back = (block_bytes(model, m, size=s) / 1e6 for s in (2, 6))
            shares = (f"{efficiency(model, x, m, ranks):.0%}" for x in links.values())
            print(
                f"| {ranks} | {length} | {m} | {forward:.1f} | {back:.1f} | {' | '.join(shares)} |"
            )


if __name__ == "__main__":
    main()
