"""attentropy bench: time and memory of attention with statistics against torch's without."""

import json
from functools import partial
from typing import Any

import click

from attentropy.cli.failures import one_sentence


@click.command("bench")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Where to measure; cuda takes the same shapes in bfloat16.",
)
@click.option("--quick", is_flag=True, help="One small shape.")
@click.option("--repeat", default=15, show_default=True, help="Rounds of each case, at most.")
@click.option("--seconds", default=20.0, show_default=True, help="Time for each case, about.")
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

    from attentropy.bench import cuda
    from attentropy.bench.runner import as_json as to_json
    from attentropy.bench.runner import measure
    from attentropy.bench.table import cases, on_cuda, quick_cases

    shapes = quick_cases() if quick else cases()
    if device == "cuda":
        with one_sentence(debug=False):
            cuda.require()
        shapes = on_cuda(shapes)
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


def table(results: list[Any]) -> Any:
    """Results as a table of rich."""
    from rich.table import Table

    found = Table("case", "contender", "ms", "time/sdpa", "cpu/sdpa", "bar", "of peak", "extra MiB")
    for r in results:
        found.add_row(
            r.case, r.contender, f"{r.seconds * 1e3:.2f}", f"{r.ratio:.2f}", f"{r.cpu_ratio:.2f}",
            "" if r.bar is None else f"{r.bar:.2f}",
            "" if r.peak_share is None else f"{r.peak_share:.0%}",
            "" if r.extra_mib is None else f"{r.extra_mib:.0f}",
        )  # fmt: skip
    return found
