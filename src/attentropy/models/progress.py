"""Progress of long work with a model, layer by layer, in units of its cost."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

USUAL_BALANCE = 2048.0


class Listener:
    """Receives progress; this one ignores it."""

    def stage(self, text: str) -> None:
        """A new part of the work begins.

        Args:
            text: what is done now.
        """

    def begin(self, total: int) -> None:
        """The amount of work is known.

        Args:
            total: the amount of work.
        """

    def more(self, work: int) -> None:
        """The amount of work has changed since the start.

        Args:
            work: the amount to add; negative for work that is not needed.
        """

    def perhaps(self, work: int, condition: str) -> None:
        """Work that may come besides the total; it replaces what was said before.

        Args:
            work: the amount; 0 if nothing more may come.
            condition: when it is done, in words that begin with "if".
        """

    def advance(self, work: int) -> None:
        """Some of the work is done.

        Args:
            work: the amount that was done since the last call.
        """

    def say(self, text: str) -> None:
        """A message for the user.

        Args:
            text: a sentence.
        """


class Amount(NamedTuple):
    """An amount of reading.

    Attributes:
        work: in the units of `ReadingCost`.
        tokens: the number of tokens that are read.
    """

    work: int = 0
    tokens: int = 0

    def and_also(self, other: "Amount") -> "Amount":
        """Both, one after the other.

        Args:
            other: more reading.
        """
        return Amount(self.work + other.work, self.tokens + other.tokens)

    def times(self, count: int) -> "Amount":
        """The same, several times.

        Args:
            count: how often.
        """
        return Amount(self.work * count, self.tokens * count)


class ReadingCost:
    """The cost of reading, in tokens weighted by the cost of their attention.

    A token costs 2 P operations for P parameters, and 2 n w L for attention to n / 2 keys on
    average in L layers of width w.

    Args:
        model: the model.

    Attributes:
        balance: the length at which the attention of a token costs as much as all else.

    >>> ReadingCost(nn.Linear(2, 2)).of(100, length=2048)
    200
    """

    def __init__(self, model: nn.Module) -> None:
        config = getattr(model, "config", None)
        width, layers = (getattr(config, name, 0) for name in ("hidden_size", "num_hidden_layers"))
        size = sum(parameter.numel() for parameter in model.parameters())
        known = bool(width and layers and size)
        self.balance = size / (width * layers) if known else USUAL_BALANCE

    def of(self, tokens: int, *, length: int) -> int:
        """The amount of work.

        Args:
            tokens: the number of all tokens that are read.
            length: tokens of the text that each of them stands in.
        """
        return round(tokens * (1 + length / self.balance))

    def share(self, first: int, tokens: int, *, length: int) -> float:
        """The cost of a token in one piece of a text, divided by the mean over the text.

        Args:
            first: tokens of the text before the piece.
            tokens: tokens of the piece.
            length: tokens of the text.

        >>> cost = ReadingCost(nn.Linear(2, 2))
        >>> [cost.share(first, 1024, length=2048) for first in (0, 1024)]
        [0.75, 1.25]
        """
        return (1 + (2 * first + tokens) / self.balance) / (1 + length / self.balance)


class Expected:
    """Work that is still to come, so that a listener knows the whole of it.

    Args:
        listener: receives the changes.
    """

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.certain = 0  # of the work to come, what the listener's total has
        self.possible = 0

    def add(self, work: int) -> None:
        """Work that is done later in any case.

        Args:
            work: the amount.
        """
        self.certain += work
        self.listener.more(work)

    def perhaps(self, work: int, condition: str) -> None:
        """Work that is done on a condition; the total does not have it.

        Args:
            work: the amount.
            condition: in words that begin with "if".
        """
        self.possible = work
        self.listener.perhaps(work, condition)

    def decide(self, *, needed: bool) -> None:
        """Whether the condition is met: then its work is part of the total.

        Args:
            needed: True if the work is done.
        """
        if needed:
            self.add(self.possible)
        self.perhaps(0, "")

    def comes(self, work: int) -> None:
        """So much is done now, expected or not.

        Args:
            work: the amount.
        """
        self.listener.more(max(0, work - self.certain))
        self.certain = max(0, self.certain - work)

    def ends(self) -> None:
        """Nothing comes any more."""
        self.listener.more(-self.certain)
        self.certain = 0
        self.perhaps(0, "")


@contextmanager
def counted(
    model: nn.Module,
    listener: Listener,
    *,
    work: int,
    tokens: int,
    cost: ReadingCost | None = None,
    length: int = 0,
) -> Iterator[None]:
    """Report `work` to a listener, layer by layer, while the model reads `tokens` inside the block.

    At the end it reports what is left, so that the sum is always `work`.

    Args:
        model: the model.
        listener: receives the progress.
        work: the amount of work of the block.
        tokens: the number of tokens that will be read.
        cost: weighs pieces that are read with a cache: late ones of a text cost more. None counts
            all tokens alike.
        length: tokens of each text, where `cost` is given.
    """
    layers = blocks(model)
    each = work / max(1, tokens * len(layers))
    read = _Pieces()
    told, done = 0, 0.0

    def hear(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        nonlocal told, done
        rows, size = _sizes(args, kwargs)
        before = read.before(module, kwargs.get("past_key_values"), size)
        weight = 1.0 if cost is None else cost.share(before, size, length=length)
        done += each * rows * size * weight
        if (now := min(int(done), work)) > told:
            listener.advance(now - told)
            told = now

    hooks = [layer.register_forward_hook(hear, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    listener.advance(work - told)


class _Pieces:
    """How much of its text each layer has read: a text goes on as long as its cache is the same."""

    def __init__(self) -> None:
        self.known: dict[nn.Module, tuple[Any, int]] = {}

    def before(self, layer: nn.Module, cache: Any, size: int) -> int:
        """Tokens of the text that the layer has read before a piece.

        Args:
            layer: the layer.
            cache: of keys and values, or None.
            size: tokens of the piece.
        """
        last, read = self.known.get(layer, (None, 0))
        first = read if cache is not None and cache is last else 0
        self.known[layer] = cache, first + size
        return first


def blocks(model: nn.Module) -> list[nn.Module]:
    """The layers that a model calls one after another: its longest list of modules.

    Args:
        model: the model.
    """
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return list(max(lists, key=len, default=[]))


def _sizes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """B and n of the hidden states [B, n, ...] that a layer gets."""
    given = (*args, *kwargs.values())
    found = next((x for x in given if isinstance(x, Tensor) and x.dim() > 1), None)
    return (0, 0) if found is None else (found.shape[0], found.shape[1])
