"""attentropy bench: time and memory of attention with statistics against torch's without."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import click

from attentropy.core.language.speaking import told


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
              help="The largest number of rounds of each case.")  # fmt: skip
@click.option("--seconds", default=20.0, show_default=True, type=click.FloatRange(0),
              help="Approximate time for each case.")  # fmt: skip
@click.option("--only", multiple=True, help="A contender to keep besides sdpa; may be repeated.")
@click.option("--predict", metavar="ARCHS",
              help="Predict the GPU kernel for sm_80, sm_90 or both, without timing.")  # fmt: skip
@click.option("--widths", default="64,128", show_default=True, metavar="WIDTHS",
              help="Widths of heads to predict.")  # fmt: skip
@click.option("--dtypes", default="bfloat16", show_default=True, metavar="DTYPES",
              help="Dtypes to predict: bfloat16, float16, float32.")  # fmt: skip
@click.option("--calls", default="causal", show_default=True, metavar="CALLS",
              help="Calls to predict: causal, float bias, bool mask, relative bias, dropout, "
              "softcap or all of these.")  # fmt: skip
@click.option("--tune", is_flag=True,
              help="On cuda: time tile sizes and write the best to --into.")  # fmt: skip
@click.option("--into", type=click.Path(dir_okay=False, path_type=Path),
              help="File for the results as JSON, or for the tile sizes of --tune; on cuda "
              "attentropy_gpu.json or attentropy_tiles.json if not given.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON only.")
def command(
    device: str,
    quick: bool,
    repeat: int,
    seconds: float,
    only: tuple[str, ...],
    predict: str | None,
    widths: str,
    dtypes: str,
    calls: str,
    tune: bool,
    into: Path | None,
    as_json: bool,
) -> None:
    """Compare attention kernels with scaled_dot_product_attention on the same tensors.

    Contenders take turns in one run; a case is the median over its rounds. Ratios below 1 are
    faster than sdpa, which gives no statistics. On cuda, torch's flash and cuDNN backends and
    FlexAttention (with lse and largest score) compete too, and the table shows the prediction of
    the speed model next to the time. Without a CUDA device the command stops with one sentence and
    exit code 1.

    With --predict nothing is timed: the GPU kernel is compiled for a card that need not be present,
    and a model of the card runs its machine code, next to plain flash attention. Compiled
    kernels and what the model says of them are kept in Triton's cache, so that a list that was
    stopped continues from there.
    """
    if predict is not None:
        said = _predicted(predict, widths=widths, dtypes=dtypes, calls=calls, into=into)
        _show(said, as_json=as_json)
        return
    from rich.console import Console
    from rich.progress import track

    from attentropy.attention.choice import KERNELS
    from attentropy.lab.bench import cuda
    from attentropy.lab.bench.runner import as_json as to_json
    from attentropy.lab.bench.runner import measure
    from attentropy.lab.bench.table import cases, on_cuda, quick_cases

    if tune:
        _tune(device, into)
        return
    shapes = quick_cases() if quick else cases()
    if device == "cuda":
        cuda.require()
        shapes = on_cuda(shapes)
    _check(only, {"sdpa", "eager", *KERNELS, *cuda.NAMES} - {"reference"})
    given: dict[str, Any] = {"repeat": repeat, "memory": True, "seconds": seconds, "only": only}
    results = [
        result
        for case in track(shapes, told("measuring"), console=Console(stderr=True))
        for result in measure(case, **given, missing=partial(click.echo, err=True))
    ]
    found = json.dumps(to_json(results, device=device), indent=1)
    if device == "cuda":
        into = into or Path("attentropy_gpu.json")
    if into is not None:
        into.write_text(found + "\n")
        click.echo(told(f"written to {into}"), err=True)
    if as_json:
        click.echo(found)
    else:
        Console().print(table(results))


def _check(only: tuple[str, ...], known: set[str]) -> None:
    unknown = sorted(set(only) - known)
    if unknown:
        names = ", ".join(sorted(known))
        raise click.UsageError(f"no contender {', '.join(unknown)}; there are {names}")


def _predicted(archs: str, *, widths: str, dtypes: str, calls: str, into: Path | None) -> list[Any]:
    """What the model says; `into` holds what it said so far as a JSON list."""
    from rich.console import Console
    from rich.progress import track

    from attentropy.cli.failures import needs

    needs("bench --predict", "triton", "triton")
    from attentropy.lab.bench import predicted

    wanted = predicted.planned(
        predicted.architectures(archs), widths=predicted.whole(widths), dtypes=dtypes.split(","),
        features=predicted.calls(calls),
    )  # fmt: skip
    found: list[Any] = []
    for one in track(wanted, told("compiling and modelling"), console=Console(stderr=True)):
        found.append(one())
        if into is not None:
            into.write_text(_listed(found) + "\n")
    return found


def _listed(found: list[Any]) -> str:
    return json.dumps([x.as_dict() for x in found], indent=1)


def _show(found: list[Any], *, as_json: bool) -> None:
    """Print predictions, as a table or as a JSON list."""
    from rich.console import Console

    from attentropy.lab.bench import predicted

    if as_json:
        click.echo(_listed(found))
        return
    Console().print(predicted.columns(found))
    said = "Predicted, not timed: ratios in one tool chain are what the model is good for."
    click.echo(told(said))


def _tune(device: str, into: Path | None) -> None:
    """Time tile sizes on the card and write the best."""
    from attentropy.lab.bench import cuda

    if device != "cuda":
        raise click.UsageError("--tune needs --device cuda")
    cuda.require()
    from attentropy.kernels.triton.measured import VARIABLE, save
    from attentropy.lab.bench.tuning import tuned

    path = into or Path("attentropy_tiles.json")
    save(path, list(tuned(say=partial(click.echo, err=True))))
    click.echo(told(f"Set {VARIABLE}={path.resolve()} to use these tile sizes."))


def table(results: list[Any]) -> Any:
    """Results as a rich table.

    Args:
        results: of attentropy.lab.bench.runner.measure.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    found = Table(told("case"), told("contender"), box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    predicted = any(r.predicted is not None for r in results)
    headings = ["ms", "time/\nsdpa", "cpu/\nsdpa", "bar", "of\npeak", "extra\nMiB"]
    for heading in (*headings, "predicted\nms") if predicted else headings:
        found.add_column(told(heading), justify="right", no_wrap=True)
    for r in results:
        cells = [
            r.case, r.contender, f"{r.seconds * 1e3:.2f}", f"{r.ratio:.2f}", f"{r.cpu_ratio:.2f}",
            "" if r.bar is None else f"{r.bar:.2f}",
            "" if r.peak_share is None else f"{r.peak_share:.0%}",
            "" if r.extra_mib is None else f"{r.extra_mib:.0f}",
        ]  # fmt: skip
        if predicted:
            cells.append("" if r.predicted is None else f"{r.predicted * 1e3:.2f}")
        found.add_row(*cells)
    return found
