"""What the hardware would allow at best, per configuration: arithmetic, not a measurement.

python -m attentropy.kernels.triton.ahead.roofline     # the table of docs/gpu.md
"""

from dataclasses import dataclass

from attentropy.kernels.triton.ahead.model.cards import CARDS
from attentropy.kernels.triton.configs import HALF, WIDTHS, TileSizes
from attentropy.kernels.triton.plan_forward import STATE_NUMBERS, cut, lean_share

ROW_STATISTICS_BYTES = 6 * 4 + 8


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What a kernel does: products of n^2 D, [n, D] tensors moved, operations of a pair.

    `softmax` counts what plain flash attention does beside the products, `statistics` what the
    statistics add; a multiply-add counts twice.
    """

    products: int
    tensors: int
    softmax: int
    statistics: int


PASSES = {
    # max, subtract, times the unit, exponential, sum, convert; statistics: a product and a sum
    # for entropy, a multiply-add each for varentropy and sum p^2; argmax takes none of a pair
    "forward": Pass(products=2, tensors=4, softmax=6, statistics=6),
    # scale and subtract, exponential, minus shift, times p, convert; statistics: two multiply-adds
    # for entropy and varentropy, one for sum p^2
    "queries": Pass(products=3, tensors=5, softmax=6, statistics=6),
    "keys": Pass(products=4, tensors=6, softmax=7, statistics=6),
}


@dataclass(frozen=True, kw_only=True)
class CallShape:
    """Full attention of `heads` heads (batch included) over `length` keys, 2-byte inputs."""

    heads: int = 128
    length: int = 4096
    width: int = 64


def flops(shape: CallShape, products: int) -> float:
    """2 n^2 D per product."""
    return 2.0 * products * shape.heads * shape.length**2 * shape.width


def traffic(shape: CallShape, tensors: int) -> float:
    """Bytes of so many [n, D] tensors and one set of statistics, each moved once."""
    rows = shape.heads * shape.length
    return rows * (2.0 * tensors * shape.width + ROW_STATISTICS_BYTES)


def passed_by(shape: CallShape, block: int) -> float:
    """Bytes that pass by the blocks, from the cache at best: two [n, D] tensors for each block."""
    blocks = shape.heads * -(-shape.length // block)
    return 2.0 * 2 * blocks * shape.length * shape.width


def statistics_share(width: int, kernel: str = "forward", operations: int | None = None) -> float:
    """Share of the statistics in the arithmetic of a pass, D = Dv; if they took but `operations`.

    >>> round(statistics_share(64), 3), round(statistics_share(16, operations=4), 3)
    (0.022, 0.054)
    """
    do = PASSES[kernel]
    added = do.statistics if operations is None else operations
    return added / (2 * do.products * width + do.softmax + added)


def best_time(shape: CallShape, *, arch: int, products: int, tensors: int) -> float:
    """Seconds below which no kernel can go: products at the peak rate, or memory."""
    card = CARDS[arch]
    return max(flops(shape, products) / card.flops, traffic(shape, tensors) / card.bandwidth)


@dataclass(frozen=True, kw_only=True)
class DecodeShape:
    """One query per head, 2-byte inputs; `heads` query heads share `key_heads` of each batch."""

    keys: int
    batch: int = 1
    heads: int = 32
    key_heads: int = 8
    width: int = 128


@dataclass(frozen=True, kw_only=True)
class DecodeTraffic:
    """How decoding is shared out: shares of the keys, programs, and bytes over the least of them.

    The least is to read keys, values and queries and to write output and statistics, once each;
    beside that the states of the shares are written and read. The search for the argmax reads
    16 keys of each row and share again, from the cache.
    """

    shares: int
    programs: int
    excess: float


def decode_traffic(shape: DecodeShape, *, arch: int) -> DecodeTraffic:
    """What decoding moves on a card.

    >>> decode_traffic(DecodeShape(keys=4096), arch=80)
    DecodeTraffic(shares=22, programs=176, excess=1.045)
    """
    programs = shape.batch * shape.key_heads
    group = shape.heads // shape.key_heads
    lean = lean_share(group, shape.width, bytes_of_key=2 * 2 * shape.width)
    shares, _ = cut(shape.keys, programs=programs, among=CARDS[arch].processors, lean=lean)
    rows = shape.batch * shape.heads
    least = 2 * 2 * programs * shape.keys * shape.width + rows * (
        2 * 2 * shape.width + ROW_STATISTICS_BYTES
    )
    state = 4 * (shape.width + STATE_NUMBERS)
    moved = 2 * rows * shares * state if shares > 1 else 0
    return DecodeTraffic(
        shares=shares, programs=programs * shares, excess=round(1 + moved / least, 3)
    )


def decode_markdown() -> str:
    """Per batch and number of keys: shares, programs and bytes over the least, on each card."""
    names = [f"{card.name} shares, programs, bytes" for card in CARDS.values()]
    lines = [f"| batch | keys | {' | '.join(names)} |", "|---" * (2 + len(names)) + "|"]
    for batch in (1, 8):
        for keys in (1024, 2048, 4096, 32768, 131072):
            found = [decode_traffic(DecodeShape(batch=batch, keys=keys), arch=a) for a in CARDS]
            cells = [f"{x.shares}, {x.programs}, {x.excess:.3f}" for x in found]
            lines.append(f"| {batch} | {keys} | {' | '.join(cells)} |")
    return "\n".join(lines)


def markdown() -> str:
    """Per width of 2-byte inputs: flop, bytes, the statistics, the bound on each card."""
    names = [card.name for card in CARDS.values()]
    first = "| kernel | width | block x tile | Tflop | GB | flop/byte | GB by blocks | statistics"
    lines = [f"{first} | {' | '.join(names)} |", "|---" * (8 + len(names)) + "|"]
    for kernel in PASSES:
        for width in WIDTHS:
            lines.append(_row(kernel, CallShape(width=width), HALF[kernel][80][width]))
    return "\n".join(lines)


def _row(kernel: str, shape: CallShape, tiles: TileSizes) -> str:
    do = PASSES[kernel]
    work, moved = flops(shape, do.products), traffic(shape, do.tensors)
    cells = [
        kernel, str(shape.width), f"{tiles.block} x {tiles.tile}", f"{work / 1e12:.2f}",
        f"{moved / 1e9:.2f}", f"{work / moved:.0f}", f"{passed_by(shape, tiles.block) / 1e9:.1f}",
        f"{statistics_share(shape.width, kernel):.1%}",
    ]  # fmt: skip
    for arch in CARDS:
        seconds = best_time(shape, arch=arch, products=do.products, tensors=do.tensors)
        cells.append(f"{1e3 * seconds:.2f} ms")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(markdown())
    print()
    print(decode_markdown())
