"""extrapolate/words: the published experiment on log n, as large as a small machine allows.

A masked language model of gated units (a small GAU-alpha, see lab.subjects.word_models) learns word
pieces at 64; as training goes on it is tested at up to 16 times that length, with 1/sqrt d and with
log n. `attentropy lab extrapolate/words --text FOLDER` takes the documentation under a folder;
without it the sample text that ships is used, which is far too small for a conclusion.

Training keeps a checkpoint beside the results: --resume goes on where it stopped, also in the
middle of a stage.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attentropy.core.results import Stats
from attentropy.core.scales import LogLengthFrom
from attentropy.lab.experiments.language_findings import GAINS, LOSSES, PUBLISHED
from attentropy.lab.harness.experiment import Experiment, FigureSpec, Row, TableSpec
from attentropy.lab.harness.results import RunResults
from attentropy.lab.subjects.byte_models import PLAIN
from attentropy.lab.subjects.small_model import windows
from attentropy.lab.subjects.word_models import Lamb, WordModel
from attentropy.lab.subjects.word_pieces import WordTexts, digest, gathered, hidden, pieces

SAMPLE = "the sample text that ships"
LOG = f"{PLAIN}, log n at test"
SAVED = 50  # steps between checkpoints


@dataclass(frozen=True)
class WordsConfig:
    """Sizes of the model and of its training; `text` and `sha256` say what it learns from."""

    text: str = SAMPLE
    sha256: str = ""
    vocabulary: int = 4096
    width: int = 96
    layers: int = 12
    keys: int = 64
    trained: int = 64
    batch: int = 16
    rate: float = 1.76e-3  # as published; 0.01 diverged between 1500 and 2000 steps
    warmup: int = 100
    hidden: float = 0.15
    stages: tuple[int, ...] = (250, 500, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 12000, 16000)
    times: tuple[int, ...] = (1, 2, 4, 8, 16)
    tested: int = 32768  # pieces read in the test of a length


class Training:
    """A model, its optimiser and random numbers after some steps, kept in a file.

    Args:
        config: sizes of the experiment.
        seed: of the random numbers.
        file: where the state is kept; None keeps it in memory only.
    """

    def __init__(self, config: WordsConfig, seed: int, file: Path | None) -> None:
        torch.manual_seed(seed)
        sizes = {"width": config.width, "layers": config.layers, "keys": config.keys}
        self.config, self.file = config, file
        self.model = WordModel(config.vocabulary, **sizes)
        learned = [p for p in self.model.parameters() if p.requires_grad]
        self.optimiser = Lamb(learned, config.rate)
        self.rng = torch.Generator().manual_seed(seed)
        self.step, self.seconds = 0, 0.0
        if file is not None and file.exists():
            self._load(torch.load(file, weights_only=True))

    def until(self, step: int, texts: WordTexts) -> None:
        """Train up to a step, and keep the state.

        Args:
            step: number of steps since the beginning.
            texts: to learn from.
        """
        began = time.process_time()
        while self.step < step:
            self._learn(texts)
            if self.step % SAVED == 0 or self.step == step:
                now = time.process_time()
                self.seconds, began = self.seconds + now - began, now
                self._save()

    def _learn(self, texts: WordTexts) -> None:
        config = self.config
        for group in self.optimiser.param_groups:
            group["lr"] = config.rate * min(1.0, (self.step + 1) / config.warmup)
        tokens = windows(texts.learned, config.trained, config.batch, self.rng)
        seen, asked = hidden(tokens, texts.inner, config.hidden, self.rng)
        wanted = asked != -100
        features, _ = self.model.read(seen)
        loss = F.cross_entropy(self.model.name(features[wanted]), asked[wanted])
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.step += 1

    def _save(self) -> None:
        if self.file is None:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        part = self.file.with_suffix(".part")
        state = {
            "model": self.model.state_dict(), "optimiser": self.optimiser.state_dict(),
            "rng": self.rng.get_state(), "step": self.step, "seconds": self.seconds,
        }  # fmt: skip
        torch.save(state, part)
        part.replace(self.file)

    def _load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.rng.set_state(state["rng"])
        self.step, self.seconds = state["step"], state["seconds"]


@cache
def texts_of(text: str, vocabulary: int, kept: Path | None) -> WordTexts:
    """The pieces of a text; kept in a folder, so that a run that is resumed reads the same.

    Args:
        text: a path, or SAMPLE.
        vocabulary: number of pieces.
        kept: folder of what is kept.
    """
    file = None if kept is None else kept / "pieces.pt"
    if file is not None and file.exists():
        return WordTexts(*torch.load(file, weights_only=True))
    found = pieces(_written(text), vocabulary)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(tuple(found), file.with_suffix(".part"))
        file.with_suffix(".part").replace(file)
    return found


def _written(text: str) -> str:
    from attentropy.lab.embedded import sample_bytes

    return sample_bytes().decode() if text == SAMPLE else gathered(Path(text))


def measure(
    config: WordsConfig, condition: str, seed: int, *, kept: Path | None = None
) -> list[Row]:
    """Train up to the stage, and test at every length with both scales.

    Args:
        config: sizes of the experiment.
        condition: one of conditions(config), "N steps".
        seed: of the random numbers.
        kept: folder for checkpoints; None trains from the beginning.
    """
    texts = texts_of(config.text, config.vocabulary, kept)
    training = Training(config, seed, None if kept is None else kept / f"seed{seed}.pt")
    training.until(int(condition.split(maxsplit=1)[0]), texts)
    about = {"steps": training.step}
    rows = [
        {**about, **row}
        for times in config.times
        for row in _tested(config, training, texts, times)
    ]
    return [{**about, "kind": "training", "CPU minutes": training.seconds / 60}, *rows]


@torch.no_grad()
def _tested(config: WordsConfig, training: Training, texts: WordTexts, times: int) -> list[Row]:
    """Rows of both scales at one length, and of the gain of log n with its standard error."""
    n = config.trained * times
    count = max(2, min(config.tested, len(texts.held)) // n)
    starts = torch.linspace(0, len(texts.held) - n, count).long()
    tokens = texts.held[starts[:, None] + torch.arange(n)]
    seen, asked = hidden(tokens, texts.inner, config.hidden, torch.Generator().manual_seed(7))
    rows, right = [], {}
    for rule, scale in ((PLAIN, None), (LOG, LogLengthFrom(config.trained))):
        training.model.set_scale(scale)
        found, right[rule] = _judged(training.model, seen, asked)
        rows.append({"n": n, "rule": rule, **found})
    training.model.set_scale(None)
    better = 100 * (right[LOG] - right[PLAIN])
    error = better.std().item() / math.sqrt(len(better))
    return [*rows, {"n": n, "gain": better.mean().item(), "error": error}]


def _judged(model: WordModel, seen: Tensor, asked: Tensor) -> tuple[Row, Tensor]:
    """Accuracy, loss and entropy, and which of the hidden pieces were right."""
    right, losses, entropies = [], [], []
    for part, wanted in zip(seen.split(max(1, 4096 // seen.shape[1])),
                            asked.split(max(1, 4096 // seen.shape[1])), strict=True):  # fmt: skip
        features, stats = model.read(part)
        logits, names = model.name(features[wanted != -100]), wanted[wanted != -100]
        right.append((logits.argmax(-1) == names).double())
        losses.append(F.cross_entropy(logits, names, reduction="none"))
        entropies.append(torch.stack([_entropy(one) for one in stats]).mean())
    found = {
        "accuracy": 100 * torch.cat(right).mean().item(),
        "loss": torch.cat(losses).mean().item(),
        "entropy": torch.stack(entropies).mean().item(),
    }
    return found, torch.cat(right)


def _entropy(stats: Stats) -> Tensor:
    """Mean entropy of a layer, which has probabilities."""
    assert stats.entropy is not None
    return stats.entropy.mean()


def conclude(results: RunResults) -> list[str]:
    """The gain as training continues, next to the published one, and what it would take.

    Args:
        results: rows of a run.
    """
    last = max(results.values("steps"))
    here = results.where(steps=last)
    trained = min(results.values("n"))
    lines = [
        f"After {last} steps ({here.mean('CPU minutes'):.0f} CPU minutes of training) 1/sqrt d "
        f"names {_levels(here, PLAIN)} % of the hidden pieces at "
        f"{'/'.join(str(n) for n in sorted(here.values('n')))} pieces, log n "
        f"{_levels(here, LOG)} %. Errors below are those of the tested text, which is the same for "
        "both scales; with one seed there is no error of training."
    ]
    for n in sorted(here.values("n"))[1:]:
        times = n // trained
        lost = here.mean("accuracy", rule=PLAIN, n=trained) - here.mean("accuracy", rule=PLAIN, n=n)
        lines.append(
            f"At {times}x, 1/sqrt d loses {lost:.1f} points (published: {LOSSES[times]:.1f}) and "
            f"log n gives {here.mean('gain', n=n):+.2f} ± {here.mean('error', n=n):.2f} back "
            f"(published: {GAINS[times]:+.1f})."
        )
    lines += [_losses(results, times * trained) for times in (4, 16)]
    lines.append(_course(results, 4 * trained))
    return [*(line for line in lines if line), PUBLISHED]


def _levels(results: RunResults, rule: str) -> str:
    return "/".join(f"{s.mean:.1f}" for s in results.where(rule=rule).curve("n", "accuracy")[1])


def _losses(results: RunResults, n: int) -> str:
    """By how much log n lowers the loss at a length, against steps; "" where it was not tested."""
    here = results.where(n=n)
    if not len(here):
        return ""
    told = ", ".join(
        f"{here.mean('loss', rule=PLAIN, steps=s) - here.mean('loss', rule=LOG, steps=s):.2f} "
        f"after {s} steps"
        for s in sorted(here.values("steps"))
    )
    return f"As training goes on, log n lowers the loss at {n} pieces, in nats, by {told}."


def _course(results: RunResults, n: int) -> str:
    """The gain at 4x against steps. Nothing is extrapolated from it."""
    steps, gains = results.where(n=n).curve("steps", "gain")
    said = ", ".join(f"{g.mean:+.2f} after {s} steps" for s, g in zip(steps, gains, strict=True))
    return (
        f"As training goes on, log n gains at {n} pieces, in points: {said}. No figure here is "
        "extrapolated. The model of the author's published code has 24 layers of width 768, a "
        "hundred times the parameters, and learned from far more text: whether the curve would "
        "reach the published gain is not known from this run."
    )


def conditions(config: WordsConfig) -> Sequence[str]:
    """Stages of training; each continues the one before.

    Args:
        config: sizes of the experiment.
    """
    return [f"{step} steps" for step in config.stages]


def with_text(folder: Path) -> Experiment:
    """The experiment on the documentation under a folder.

    Args:
        folder: of .pod, .rst and .txt files.
    """
    about = {"text": str(folder), "sha256": digest(gathered(folder))}
    full, quick = (replace(config, **about) for config in (EXPERIMENT.full, EXPERIMENT.quick))
    return replace(EXPERIMENT, full=full, quick=quick)


EXPERIMENT = Experiment(
    name="extrapolate/words",
    question="A masked model of word pieces trained at 64: "
    "does log n recover what longer texts lose?",
    full=WordsConfig(),
    quick=WordsConfig(
        vocabulary=512, width=32, layers=2, keys=32, stages=(50, 100), times=(1, 4), tested=4096
    ),
    conditions=conditions,
    measure=measure,
    kept=lambda folder: partial(measure, kept=folder),
    reads=with_text,
    tables=(
        TableSpec("Accuracy, %", "accuracy", ("steps", "rule"), "n", digits=1),
        TableSpec("Gain of log n, points", "gain", ("steps",), "n"),
        TableSpec("Loss, nats", "loss", ("steps", "rule"), "n"),
        TableSpec("Entropy, nats", "entropy", ("steps", "rule"), "n"),
        TableSpec("CPU minutes of training", "CPU minutes", ("steps",), "kind", digits=0),
    ),
    figures=(
        FigureSpec("gain", "What log n gives back, as training goes on", "steps", "gain", "n",
                   labels=("steps of training", "points of accuracy"), chance=0.0),
        FigureSpec("accuracy", "Words hidden in texts beyond the trained length", "n", "accuracy",
                   "rule", panels="steps", log="x", labels=("pieces", "accuracy, %")),
    ),
    conclude=conclude,
)  # fmt: skip
