"""Print what the embedded model can do: losses against length under each rule, and its heads."""

import math

from rich.console import Console
from rich.table import Table

from attentropy.core.scales import HoldEntropy, LogLengthFrom
from attentropy.lab.embedded.model import EmbeddedModel, embedded_notes
from attentropy.lab.embedded.probe import (
    HeadProfile,
    Rule,
    copy_loss,
    count_losses,
    head_profile,
    repeats,
    steered_by,
    text_loss,
    windows,
)

LENGTHS = (64, 128, 256, 512, 1024)


def candidate_rules(model: EmbeddedModel, data: bytes) -> dict[str, Rule | None]:
    """The rules compared, by the name of the scale that applies them in the library.

    Args:
        model: the embedded model.
        data: text.
    """
    n = model.trained_length
    spread_LH = head_profile(model, windows(data, n)[:, 1:]).spread.tolist()
    held = [HoldEntropy(n, tuple(spread_H)) for spread_H in spread_LH]
    return {
        "as trained": None,
        f"LogLengthFrom({n})": steered_by(model, LogLengthFrom(n)),
        f"HoldEntropy({n}, spread of the head)": steered_by(model, *held),
    }


def length_table(model: EmbeddedModel, data: bytes, rules: dict[str, Rule | None]) -> Table:
    """Perplexity per byte of the last 64 bytes, plain and repeated text, by length and rule.

    Args:
        model: the embedded model.
        data: text.
        rules: by name.
    """
    table = Table(title="perplexity per byte of the last 64 bytes")
    for name in ("text", "rule", *map(str, LENGTHS)):
        table.add_column(name, justify="left" if name in ("text", "rule") else "right")
    for kind, loss in (("plain", text_loss), ("repeated", copy_loss)):
        for name, rule in rules.items():
            cells = (f"{math.exp(loss(model, data, n, rule)):.3f}" for n in LENGTHS)
            table.add_row(kind, name, *cells)
    return table


def entropy_table(model: EmbeddedModel, data: bytes, rules: dict[str, Rule | None]) -> Table:
    """Mean attention entropy of all heads (nats, last 64 rows), by length and rule.

    Args:
        model: the embedded model.
        data: text.
        rules: by name.
    """
    table = Table(title="attention entropy, mean of all heads, nats")
    for name in ("rule", *map(str, LENGTHS[1:])):
        table.add_column(name, justify="left" if name == "rule" else "right")
    for name, rule in rules.items():
        found = (head_profile(model, windows(data, n, count=8)[:, 1:], rule) for n in LENGTHS[1:])
        table.add_row(name, *(f"{heads.entropy.mean():.3f}" for heads in found))
    return table


def head_table(heads: HeadProfile) -> Table:
    """One row per head: what share of its attention goes where.

    Args:
        heads: what head_profile() gave.
    """
    table = Table(title="heads at length 128, on text that is said twice")
    for name in ("layer", "head", "induction", "previous", "first key", "entropy"):
        table.add_column(name, justify="right")
    for layer in range(heads.induction.shape[0]):
        for head in range(heads.induction.shape[1]):
            at = (layer, head)
            values = (heads.induction[at], heads.previous[at], heads.first[at], heads.entropy[at])
            table.add_row(str(layer), str(head), *(f"{value:.3f}" for value in values))
    return table


def print_evaluation(model: EmbeddedModel, data: bytes, *, console: Console | None = None) -> None:
    """All tables, on standard output unless a console is given.

    Args:
        model: the embedded model.
        data: text.
        console: where to print.
    """
    console = console or Console()
    unigram, bigram = count_losses(data, data)
    console.print(f"text: {len(data)} bytes; {embedded_notes()['source']}")
    console.print(
        f"perplexity of this text under its own byte frequencies: {math.exp(unigram):.2f}, "
        f"under its own byte pairs: {math.exp(bigram):.2f}"
    )
    rules = candidate_rules(model, data)
    console.print(length_table(model, data, rules))
    console.print(entropy_table(model, data, rules))
    console.print(head_table(head_profile(model, repeats(data, model.trained_length)[:, :-1])))
