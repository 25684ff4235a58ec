"""`attentropy lab`: run an experiment with seeds, error bars, figures and a conclusion."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attentropy.cli.failures import needs
from attentropy.core.language.speaking import told

if TYPE_CHECKING:
    from attentropy.lab.harness.experiment import Experiment


@click.command()
@click.argument("name")
@click.option("--quick", is_flag=True, help="The small configuration: under two minutes.")
@click.option("--seeds", default="3", show_default=True,
              help="The number of seeds, counted from 0, or the seeds themselves, "
              "as in 3,5,8 (one seed: 3,).")  # fmt: skip
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Where the results go."
)
@click.option("--resume", is_flag=True, help="Complete a run that was interrupted.")
@click.option("--model", help="The model to use (noise, scales, extend), as MODEL of scan.")
@click.option(
    "--tokens",
    type=click.Path(path_type=Path),
    help="Token ids for --model, a .npy file; by default the sample text.",
)
@click.option(
    "--text",
    type=click.Path(path_type=Path, exists=True),
    help="Text for extrapolate/words: a file, or a folder with .pod, .rst and .txt files.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON only.")
def command(
    name: str,
    quick: bool,
    seeds: str,
    out: Path | None,
    resume: bool,
    model: str | None,
    tokens: Path | None,
    text: Path | None,
    as_json: bool,
) -> None:
    """Run the experiment NAME, or `list` all of them.

    Writes results.json, results.csv, figures and summary.md into the directory --out, which is
    lab-results/NAME if not given, and lab-results/NAME-quick with --quick. A run may be interrupted
    at any moment: --resume completes it to the same numbers.
    """
    if name == "list":
        _list(as_json)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    from attentropy.core.errors import ArgumentError
    from attentropy.lab.harness.registry import find
    from attentropy.lab.harness.run_folder import RESULTS, SUMMARY
    from attentropy.lab.harness.run_plan import RunPlan
    from attentropy.lab.harness.runner import run

    chosen = _seeds(seeds)
    try:
        experiment = find(name)
    except ArgumentError as error:
        raise click.UsageError(str(error)) from None
    needs("attentropy lab", "lab", "matplotlib")
    options = tuple[str, ...]()
    if model is not None or tokens is not None:
        experiment, options = _given(experiment, model, tokens)
    if text is not None:
        experiment, options = _reading(experiment, text), (*options, "--text", str(text))
    where = out or _default(name, quick=quick)
    run(RunPlan(experiment, quick=quick, seeds=chosen, options=options), where, resume=resume)
    if as_json:
        click.echo((where / RESULTS).read_text(encoding="utf-8"), nl=False)
        return
    Console().print(Markdown((where / SUMMARY).read_text(encoding="utf-8")))
    click.echo(told(f"written to {where}"))


def _seeds(text: str) -> int | tuple[int, ...]:
    """A number of seeds, or the seeds themselves where there is a comma."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() for word in words):
        raise click.BadParameter(
            f"a number, or numbers with commas; got {text!r}", param_hint="--seeds"
        )
    numbers = tuple(map(int, words))
    return numbers if "," in text else numbers[0]


def _given(
    experiment: "Experiment", model: str | None, tokens: Path | None
) -> "tuple[Experiment, tuple[str, ...]]":
    """The experiment on the heads of a model, and the options that say so."""
    from attentropy.core.errors import ArgumentError
    from attentropy.lab.subjects.real_heads import EMBEDDED, Given
    from attentropy.scans.loading import inputs
    from attentropy.scans.loading.sources import Permissions, Placement, load

    if experiment.on is None:
        raise ArgumentError(
            "--model", "left out: only noise, scales and extend take one", repr(model)
        )
    source = load(model, Placement(), Permissions())
    text = inputs.from_sample(source) if tokens is None else inputs.from_file(tokens, source)
    name = (EMBEDDED if model is None else model) + ("" if tokens is None else f" on {tokens}")
    longest = source.about.maximum_length
    given = Given(source.model, text.ids, name, longest, source.encode)
    options = ["--model", model] if model is not None else []
    return experiment.on(given), (*options, *(["--tokens", str(tokens)] if tokens else []))


def _reading(experiment: "Experiment", text: Path) -> "Experiment":
    """The experiment on a text of the user's."""
    from attentropy.core.errors import ArgumentError

    if experiment.reads is None:
        raise ArgumentError("--text", "left out: only extrapolate/words takes one", str(text))
    return experiment.reads(text)


def _default(name: str, *, quick: bool) -> Path:
    return Path("lab-results") / (name.replace("/", "-") + ("-quick" if quick else ""))


def _list(as_json: bool) -> None:
    from attentropy.lab.harness.registry import all_experiments

    if as_json:
        rows = [{"name": one.name, "question": one.question} for one in all_experiments()]
        click.echo(json.dumps(rows))
        return
    for experiment in all_experiments():
        click.echo(f"{experiment.name:26} {told(experiment.question)}")
