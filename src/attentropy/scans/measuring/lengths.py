"""Which lengths to measure, the windows of text at each, and what it costs to read them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentTypeError
from attentropy.core.notebook.words import plural
from attentropy.models.losses.probes import WINDOW, WINDOWS, no_distance
from attentropy.models.progress import Amount, ReadingCost
from attentropy.scans.errors import ScanError
from attentropy.scans.schema import ScannedModel, Skipped

SHORTEST = 64
REACH = 4
ENOUGH = 8192  # tokens that make a mean over heads and a perplexity steady
SHORT = 2048  # windows up to this length share passes of 8192 tokens, so that time can be told
PASSES = 8  # at least, where there are as many windows, for processes to share
GAPS = 4  # of the distance probe, with the one inside the trained range


def check(lengths: Sequence[int]) -> list[int]:
    """The lengths themselves if they are integers of at least 2 that increase.

    >>> check([64, 128])
    [64, 128]
    """
    if isinstance(lengths, str) or not isinstance(lengths, Iterable):
        raise ArgumentTypeError("lengths", "a list of integers", repr(lengths))
    found = list(lengths)
    if any(isinstance(n, bool) or not isinstance(n, Integral) for n in found):
        raise ArgumentTypeError("lengths", "a list of integers", found)
    if any(length < 1 for length in found):
        raise ScanError("{lengths} must be positive, got {found}", found=found)
    if not found or found != sorted(set(found)) or found[0] < 2:
        raise ScanError("{lengths} must increase and be 2 or more, got {found}", found=found)
    return [int(length) for length in found]


def default(model: ScannedModel, tokens: int) -> list[int]:
    """Powers of two from 64 to four times the trained length, as far as model and text go.

    The trained length itself is among them, because it is what the others are compared with.

    Args:
        model: the record of the model.
        tokens: the number of tokens that there are.
    """
    trained = model.trained_length
    top = min(REACH * (trained or SHORTEST), model.maximum_length or tokens, tokens)
    if top < 2:
        raise ScanError("the text is too short: it has {count}", count=plural(tokens, "token"))
    doubled = {SHORTEST << i for i in range(40) if SHORTEST << i <= top}
    if trained is not None and trained <= top:
        doubled.add(trained)
    return sorted(doubled) or [top]


def usable(
    lengths: Sequence[int], model: ScannedModel, tokens: int
) -> tuple[list[int], list[Skipped]]:
    """The lengths that model and text allow, and the others with the limit they break.

    Args:
        lengths: those that were asked for.
        model: the record of the model.
        tokens: the number of tokens that there are.
    """
    kept, skipped = [], []
    for length in lengths:
        if model.maximum_length is not None and length > model.maximum_length:
            reason = f"the model takes at most {model.maximum_length:,} tokens"
        elif length > tokens:
            reason = f"the text has only {plural(tokens, 'token')}"
        else:
            kept.append(length)
            continue
        skipped.append(Skipped(length=length, reason=reason))
    if not kept:
        reasons = "; ".join(f"{one.length:,}: {one.reason}" for one in skipped)
        raise ScanError("none of {lengths} can be measured: {reasons}", reasons=reasons)
    return kept, skipped


@dataclass(frozen=True)
class Windows:
    """The same text cut to any length.

    Attributes:
        ids: one row of tokens.
        budget: how many of them are read at every length, so that what changes is the length.
        room: tokens of one forward pass: `batch` windows of the longest length.
        begin: special tokens that every window begins with, as in training.
        end: special tokens that every window ends with.
    """

    ids: Tensor
    budget: int
    room: int
    begin: tuple[int, ...] = ()
    end: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        ids: Tensor,
        lengths: Sequence[int],
        *,
        batch: int,
        budget: int | None = None,
        begin: tuple[int, ...] = (),
        end: tuple[int, ...] = (),
    ) -> "Windows":
        """`batch` windows of the longest length, or a few thousand tokens if that is more.

        Args:
            ids: one row of tokens.
            lengths: those that will be cut.
            batch: the number of windows of the longest length in one forward pass.
            budget: number of tokens to read at every length; one window of the longest at least.
            begin: special tokens that every window begins with.
            end: special tokens that every window ends with.
        """
        special = len(begin) + len(end)
        if min(lengths) < special + 2:
            text = "{lengths} must leave room for {special} special tokens, got {found}"
            raise ScanError(text, special=special, found=min(lengths))
        room = batch * max(lengths)
        wanted = max(room, ENOUGH) if budget is None else max(budget, *lengths)
        return cls(ids, min(len(ids), wanted), room, begin, end)

    def cut(self, length: int) -> Iterator[Tensor]:
        """Rows [B, length] of each pass: what one has room for, an eighth of all rows at most.

        Passes do not depend on the number of processes.

        Args:
            length: the number of tokens in a window.
        """
        room = self.room if length > SHORT else min(self.room, ENOUGH)
        rows = self.rows(length)
        yield from rows.split(max(1, min(room // length, -(-len(rows) // PASSES))))

    def rows(self, length: int) -> Tensor:
        """All windows of a length, [W, length], with their special tokens.

        Args:
            length: the number of tokens in a window.
        """
        size = length - len(self.begin) - len(self.end)
        text = self.ids[: self.budget // size * size].view(-1, size)
        begin, end = (
            torch.tensor(ids, dtype=text.dtype).expand(len(text), -1)
            for ids in (self.begin, self.end)
        )
        return torch.cat([begin, text, end], 1)

    def along(self, losses: Tensor) -> Tensor:
        """Losses of windows, [W, length - 1], by the place of the token in the text.

        Tokens that nothing precedes in their window have none: NaN.

        Args:
            losses: as `token_losses` gives them for `rows(length)`.
        """
        length = losses.shape[1] + 1
        found = torch.full((len(losses), length), torch.nan, dtype=losses.dtype)
        found[:, 1:] = losses.cpu()
        return found[:, len(self.begin) : length - len(self.end)].reshape(-1)


class ScanCosts:
    """The costs of the parts of a scan.

    Args:
        model: the model.
        text: what it reads, cut into windows.
    """

    def __init__(self, model: nn.Module, text: Windows) -> None:
        self.model, self.reading, self.text = model, ReadingCost(model), text

    def windows(self, *lengths: int) -> Amount:
        """All windows of each length, read once.

        Args:
            lengths: tokens of a window.
        """
        found = Amount()
        for length in lengths:
            found = found.and_also(self._rows(len(self.text.rows(length)), length))
        return found

    def truncated(self, length: int, trained: int, *, rows: int | None = None) -> Amount:
        """The tokens past the trained length, in windows of it that overlap by a half.

        Args:
            length: tokens of a window.
            trained: the trained length.
            rows: number of windows; all by default.
        """
        past = length - trained
        step = min(past, max(1, trained // 2))
        rows = len(self.text.rows(length)) if rows is None else rows
        return self._rows(rows * -(-past // step), trained)

    def probed(self, length: int, trained: int) -> Amount:
        """The two probes: long windows once more, and short ones with gaps where these exist.

        Args:
            length: tokens of a window.
            trained: the trained length.
        """
        size = min(WINDOW, trained // 2)
        short = Amount()
        if no_distance(self.model) is None and size >= 4:
            rows = len(self.text.rows(length)) * (length // size)
            short = self._rows(GAPS * min(WINDOWS, rows), size)
        return self.windows(length).and_also(short)

    def calibrated(self, lengths: Sequence[int]) -> Amount:
        """A plan: three quarters of the rows twice at each length, the others twice and truncated.

        Args:
            lengths: those of the plan, the trained one first.
        """
        longest, trained = lengths[-1], lengths[0]
        rows = len(self.text.rows(longest))
        held = rows // 4
        found = self._rows(2 * (held or rows), longest)
        found = found.and_also(self.truncated(longest, trained, rows=held or rows))
        for length in lengths:
            found = found.and_also(self._rows(2 * (rows - held), length))
        return found

    def _rows(self, count: int, length: int) -> Amount:
        tokens = count * length
        return Amount(self.reading.of(tokens, length=length), tokens)
