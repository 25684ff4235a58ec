"""Run a plan unit by unit: show the time left, keep what is done, write results and figures."""

from pathlib import Path

import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from attentropy.lab.bench.machine import describe
from attentropy.lab.harness.results import RunResults
from attentropy.lab.harness.run_folder import SUMMARY, RunFolder
from attentropy.lab.harness.run_plan import RunPlan, Unit
from attentropy.lab.harness.summary import summary


def run(
    plan: RunPlan, out: Path, *, resume: bool = False, console: Console | None = None
) -> RunResults:
    """Measure the units that are not done yet, then write results, figures and summary.

    A run that is interrupted writes the results of its finished units, and says so.

    Args:
        plan: experiment, configuration and seeds.
        out: folder for the results.
        resume: completes a run that is there.
        console: for the progress bar; stderr if None.
    """
    folder = RunFolder(out, plan)
    folder.open(resume=resume)
    units = plan.units()
    left = [unit for unit in units if not folder.has(unit)]
    try:
        with _bar(console or Console(stderr=True)) as bar:
            done = len(units) - len(left)
            task = bar.add_task(plan.experiment.name, total=len(units), completed=done)
            for unit in left:
                bar.update(task, description=f"{unit.condition}, seed {unit.seed}")
                folder.save(unit, _measured(plan, unit, out))
                bar.advance(task)
    except KeyboardInterrupt:
        if any(map(folder.has, units)):
            render(folder)
        raise
    return render(folder)


def render(folder: RunFolder) -> RunResults:
    """Write results, figures and summary of the finished units.

    Args:
        folder: of the run.
    """
    from attentropy.lab.harness.figures import draw

    machine = dict(describe())
    folder.finish(machine)
    results = RunResults(folder.rows())
    experiment = folder.plan.experiment
    for figure in experiment.figures:
        draw(figure, results, folder.path / f"{figure.name}.png")
    folder.write(SUMMARY, summary(experiment, results, folder.about(machine)))
    return results


def _measured(plan: RunPlan, unit: Unit, out: Path) -> list[dict[str, object]]:
    """The rows of a unit; the caller's random numbers are not disturbed."""
    kept = plan.experiment.kept
    measure = plan.experiment.measure if kept is None else kept(out / "kept")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(unit.seed)
        return measure(plan.config, unit.condition, unit.seed)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
