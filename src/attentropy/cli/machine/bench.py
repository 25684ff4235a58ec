"""attentropy bench: time and memory of attention with statistics against torch's without."""

import json
from functools import partial
from typing import Any

import click


@click.command("bench")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Where to measure; cuda takes the same shapes in bfloat16.",
)
@click.option("--quick", is_flag=True, help="One small shape.")
@click.option("--repeat", default=15, show_default=True, type=click.IntRange(1),
              help="Rounds of each case, at most.")  # fmt: skip
@click.option("--seconds", default=20.0, show_default=True, type=click.FloatRange(0),
              help="Time for each case, about.")  # fmt: skip
@click.option("--only", multiple=True, help="A contender to keep besides sdpa; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON only.")
def command(
    device: str, quick: bool, repeat: int, seconds: float, only: tuple[str, ...], as_json: bool
) -> None:
    """Compare attention kernels with scaled_dot_product_attention on the same tensors.

    Contenders take turns in one run; a case is the median over its rounds. Ratios below 1 are
    faster than sdpa, which gives no statistics. On cuda, torch's flash and cuDNN backends and
    FlexAttention (with lse and largest score) compete too; without a CUDA device the command ends
    with one sentence and exit code 1.
    """
    from rich.console import Console
    from rich.progress import track

    from attentropy.attention.choice import KERNELS
    from attentropy.lab.bench import cuda
    from attentropy.lab.bench.runner import as_json as to_json
    from attentropy.lab.bench.runner import measure
    from attentropy.lab.bench.table import cases, on_cuda, quick_cases

    shapes = quick_cases() if quick else cases()
    if device == "cuda":
        cuda.require()
        shapes = on_cuda(shapes)
    _check(only, {"sdpa", "eager", *KERNELS, *cuda.NAMES} - {"reference"})
    given: dict[str, Any] = {"repeat": repeat, "memory": True, "seconds": seconds, "only": only}
    results = [
        result
        for case in track(shapes, "measuring", console=Console(stderr=True))
        for result in measure(case, **given, missing=partial(click.echo, err=True))
    ]
    if as_json:
        click.echo(json.dumps(to_json(results, device=device), indent=1))
    else:
        Console().print(table(results))


def _check(only: tuple[str, ...], known: set[str]) -> None:
    unknown = sorted(set(only) - known)
    if unknown:
        names = ", ".join(sorted(known))
        raise click.UsageError(f"no contender {', '.join(unknown)}; there are {names}")


def table(results: list[Any]) -> Any:
    """Results as a rich table.

    Args:
        results: of attentropy.lab.bench.runner.measure.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    found = Table("case", "contender", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("ms", "time/\nsdpa", "cpu/\nsdpa", "bar", "of\npeak", "extra\nMiB"):
        found.add_column(heading, justify="right", no_wrap=True)
    for r in results:
        found.add_row(
            r.case, r.contender, f"{r.seconds * 1e3:.2f}", f"{r.ratio:.2f}", f"{r.cpu_ratio:.2f}",
            "" if r.bar is None else f"{r.bar:.2f}",
            "" if r.peak_share is None else f"{r.peak_share:.0%}",
            "" if r.extra_mib is None else f"{r.extra_mib:.0f}",
        )  # fmt: skip
    return found
