"""What the hardware would allow at best: arithmetic, not a measurement.

python -m attentropy.kernels.triton_.roofline     # the table of docs/gpu.md
"""

from dataclasses import dataclass

from attentropy.kernels.triton_.occupancy import PROCESSORS

# per pair of query and key: scale, max, subtract, exponential, sum, convert
SOFTMAX = 6
# entropy: clamp and multiply-add; sum p^2: multiply-add; argmax: compare, select, minimum
STATISTICS = 8
ROW_STATISTICS_BYTES = 4 * 4 + 8


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Full attention of `heads` heads (batch included) over `length` keys, 2-byte inputs."""

    heads: int = 128
    length: int = 4096
    width: int = 64


def flops(shape: Shape, products: int) -> float:
    """2 n^2 D per product, of which the forward pass has 2, `queries` 3 and `keys` 4."""
    return 2.0 * products * shape.heads * shape.length**2 * shape.width


def traffic(shape: Shape, tensors: int) -> float:
    """Bytes of so many [n, D] tensors and one set of statistics, each moved once."""
    rows = shape.heads * shape.length
    return rows * (2.0 * tensors * shape.width + ROW_STATISTICS_BYTES)


def statistics_share(width: int) -> float:
    """Share of the statistics in the arithmetic of the forward pass, D = Dv.

    >>> round(statistics_share(64), 3)
    0.03
    """
    return STATISTICS / (4 * width + SOFTMAX + STATISTICS)


def best_time(shape: Shape, *, arch: int, products: int, tensors: int) -> float:
    """Seconds below which no kernel can go: products at the peak rate, or memory."""
    card = PROCESSORS[arch]
    return max(flops(shape, products) / card.flops, traffic(shape, tensors) / card.bandwidth)


PASSES = {"forward": (2, 4), "queries": (3, 5), "keys": (4, 6)}


def markdown() -> str:
    """Per pass and width: flop, bytes, their ratio, and the bound on each card."""
    names = [card.name for card in PROCESSORS.values()]
    lines = ["| pass | width | Tflop | GB | flop/byte | " + " | ".join(names) + " |"]
    lines.append("|---" * (5 + len(names)) + "|")
    for name, (products, tensors) in PASSES.items():
        for width in (64, 128):
            shape = Shape(width=width)
            work, moved = flops(shape, products), traffic(shape, tensors)
            bounds = (
                f"{1e3 * best_time(shape, arch=a, products=products, tensors=tensors):.2f} ms"
                for a in PROCESSORS
            )
            numbers = f"{work / 1e12:.2f} | {moved / 1e9:.2f} | {work / moved:.0f}"
            lines.append(f"| {name} | {width} | {numbers} | {' | '.join(bounds)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
