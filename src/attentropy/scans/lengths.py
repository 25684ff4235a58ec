"""Which lengths to measure, and the windows of text at each."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from attentropy.scans.schema import Model, ScanError, Skipped

SHORTEST = 64
REACH = 4


def parse(text: str) -> list[int]:
    """`64,128,256` as increasing integers.

    >>> parse("64, 128")
    [64, 128]
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ScanError(f"--lengths must be integers such as 64,128,256, got {text!r}")
    return check([int(part) for part in parts])


def check(lengths: Sequence[int]) -> list[int]:
    """The lengths themselves if they are at least 2 and increase."""
    found = list(lengths)
    if not found or found != sorted(set(found)) or found[0] < 2:
        raise ScanError(f"--lengths must increase and be 2 or more, got {found}")
    return found


def default(model: Model, tokens: int) -> list[int]:
    """Powers of two from 64 to four times the trained length, as far as model and text go.

    The trained length itself is among them, because it is what the others are compared with.
    """
    trained = model.trained_length
    top = min(REACH * (trained or SHORTEST), model.maximum_length or tokens, tokens)
    if top < 2:
        raise ScanError(f"the text is too short: it has {tokens} tokens")
    doubled = {SHORTEST << i for i in range(40) if SHORTEST << i <= top}
    if trained is not None and trained <= top:
        doubled.add(trained)
    return sorted(doubled) or [top]


def usable(lengths: Sequence[int], model: Model, tokens: int) -> tuple[list[int], list[Skipped]]:
    """The lengths that model and text allow, and the others with the limit they break."""
    kept, skipped = [], []
    for length in lengths:
        if model.maximum_length is not None and length > model.maximum_length:
            reason = f"the model takes at most {model.maximum_length:,} tokens"
        elif length > tokens:
            reason = f"the text has only {tokens:,} tokens"
        else:
            kept.append(length)
            continue
        skipped.append(Skipped(length=length, reason=reason))
    if not kept:
        raise ScanError(f"no length can be measured: {skipped[0].length:,}: {skipped[0].reason}")
    return kept, skipped


def windows(ids: Tensor, length: int, *, batch: int, budget: int) -> Iterator[Tensor]:
    """The first `budget` tokens cut into rows of `length`, at most `batch` rows at a time.

    Every length reads the same text, so that what changes between lengths is the length.
    """
    rows = ids[: min(budget, len(ids)) // length * length].view(-1, length)
    yield from rows.split(batch)


def budget(lengths: Sequence[int], *, batch: int, tokens: int) -> int:
    """Tokens read at every length: `batch` windows of the longest, as far as the text goes."""
    return min(tokens, batch * max(lengths))
