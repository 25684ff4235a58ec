"""What the statistics add to plain flash attention, counted in compiled code.

    python -m attentropy.kernels.triton.ahead.share    # the table of docs/gpu.md, in a minute

Counted is the loop over whole tiles of the forward pass, which is where the time goes, for sm_80,
compiled with and without the statistics (without: output and lse only). TRITON_INTERPRET must not
be set.
"""

from dataclasses import dataclass

from triton.tools.disasm import get_sass

from attentropy.kernels.triton.ahead.cases import CompiledCase, launch_of
from attentropy.kernels.triton.ahead.compiling import compile_for
from attentropy.kernels.triton.ahead.roofline import statistics_share
from attentropy.kernels.triton.ahead.sass import instructions, main_loop, operations
from attentropy.kernels.triton.configs import TABLE


@dataclass(frozen=True, kw_only=True)
class StatisticsShare:
    """Of the statistics, in the loop of one width: of all arithmetic and of its instructions.

    `operations` counts a matrix instruction by its multiply-adds; `per_pair` is how many
    instructions the statistics add for one query and key.
    """

    width: int
    operations: float
    instructions: float
    per_pair: float


def counted(width: int) -> StatisticsShare:
    """Compile both, and compare."""
    config = TABLE["forward"][False][width][0]
    case = CompiledCase("forward", width, "bfloat16", config)
    full, plain = (
        main_loop(get_sass(compile_for(launch_of(case, stats=stats), config, 80).cubin))
        for stats in (True, False)
    )
    pairs = config.block * config.tile / (32 * config.warps)
    return StatisticsShare(
        width=width,
        operations=1 - operations(plain) / operations(full),
        instructions=1 - instructions(plain) / instructions(full),
        per_pair=(instructions(full) - instructions(plain)) / pairs,
    )


def markdown(shares: list[StatisticsShare]) -> str:
    """A row per width."""
    lines = ["| width | by formula | operations | instructions | instructions per pair |"]
    lines.append("|---" * 5 + "|")
    for x in shares:
        cells = f"{x.operations:.1%} | {x.instructions:.0%} | {x.per_pair:.1f}"
        lines.append(f"| {x.width} | {statistics_share(x.width):.1%} | {cells} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown([counted(width) for width in TABLE["forward"][False]]))
