"""`python -m attentropy.lab.embedded`: train the embedded model, or print what it can do."""

import argparse
import hashlib
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from attentropy._version import __version__
from attentropy.core.errors import AttentropyError
from attentropy.lab.embedded import model as shipped
from attentropy.lab.embedded.probe import count_losses, text_loss
from attentropy.lab.embedded.tables import print_evaluation
from attentropy.lab.embedded.text import SAMPLE_BYTES, Corpus, debian_corpus, file_corpus
from attentropy.lab.embedded.training import Recipe, Trainer

CHECKPOINT, EVERY = "checkpoint.pt", 50


def train(corpus: Corpus, recipe: Recipe, out: Path) -> Trainer:
    """Train to the end, from the checkpoint in `out` if there is one."""
    trainer, checkpoint = Trainer(corpus.train, recipe), out / CHECKPOINT
    if checkpoint.exists():
        trainer.resume(checkpoint)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as progress:
        bar = progress.add_task("training", total=recipe.steps, completed=trainer.step)
        while trainer.step < recipe.steps:
            loss = trainer.advance()
            progress.update(bar, advance=1, description=f"loss {loss:.3f} nats/byte")
            if trainer.step % EVERY == 0:
                trainer.save(checkpoint)
    return trainer


def notes(corpus: Corpus, trainer: Trainer) -> dict[str, Any]:
    """What the weights file says about its making."""
    unigram, bigram = count_losses(corpus.train, corpus.held_out)
    losses = {
        "train": [round(loss, 4) for loss in trainer.losses[EVERY - 1 :: EVERY]],
        "train_every": EVERY,
        "sample_128": text_loss(trainer.model.eval(), corpus.held_out[:SAMPLE_BYTES], 128),
        "unigram": unigram,
        "bigram": bigram,
    }
    return {
        "recipe": asdict(trainer.recipe),
        "losses": losses,
        "source": corpus.source,
        "licence": corpus.licence,
        "text_sha256": hashlib.sha256(corpus.train + corpus.held_out).hexdigest(),
        "attentropy": __version__,
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
    }


def write(corpus: Corpus, trainer: Trainer, out: Path) -> None:
    """Weights, the held-out sample and its licence, into `out`."""
    shipped.save_model(trainer.model, out / shipped.WEIGHTS, notes(corpus, trainer))
    (out / shipped.SAMPLE).write_bytes(corpus.held_out[:SAMPLE_BYTES])
    (out / "sample.LICENCE.txt").write_text(f"{corpus.source}\n\n{corpus.licence}\n")


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m attentropy.lab.embedded", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("embedded"), help="directory to write to")
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--text", type=Path, help="train on this file instead of fetching the KJV")
    parser.add_argument("--threads", type=int, default=1, help="part of what decides the digits")
    parser.add_argument("--evaluate", action="store_true", help="print tables of the shipped model")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    """Train and write, or evaluate; 0 when the files are complete."""
    given = _arguments(words)
    torch.set_num_threads(given.threads)
    if given.evaluate:
        print_evaluation(shipped.load_embedded(), shipped.sample_bytes())
        return 0
    try:
        given.out.mkdir(parents=True, exist_ok=True)
        corpus = file_corpus(given.text) if given.text else debian_corpus(given.out / "debian")
        trainer = train(corpus, Recipe(steps=given.steps, seed=given.seed), given.out)
        write(corpus, trainer, given.out)
    except (AttentropyError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command continues from the last checkpoint", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
