"""beginning(): the first tokens of a scanned text, and where heads look in it."""

from collections.abc import Callable

from torch import nn

from attentropy.core.errors import UnsupportedError
from attentropy.scans.loading.inputs import Tokens
from attentropy.scans.texts.records import TextTable
from attentropy.scans.texts.table import table_of
from attentropy.scans.texts.view import text_view

TOKENS = 256
ROOM = 500_000  # characters of numbers


def beginning(
    model: nn.Module, tokens: Tokens, *, label: Callable[[int], str], length: int
) -> TextTable | None:
    """The first tokens as a page shows them; None where no layer has the weights for it.

    Args:
        model: the model.
        tokens: the text.
        label: one token id to text.
        length: the longest text that the model reads.
    """
    try:
        view = text_view(
            model, tokens, length=max(2, min(TOKENS, length)), label=label, most_heads=64
        )
    except UnsupportedError:
        return None
    return table_of(view, room=ROOM)
