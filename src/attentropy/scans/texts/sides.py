"""Which tokens belong together, and what they are patches of."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Side:
    """Tokens that follow one another: all of them, or what an encoder or a decoder reads.

    Attributes:
        name: "text", "source", "target" or "picture".
        start: place of the first token among all tokens.
        count: number of tokens.
    """

    name: str
    start: int
    count: int


class Picture(NamedTuple):
    """A picture as the model sees it.

    Attributes:
        png: the file.
        rows: number of rows of patches.
        columns: number of patches in a row.
        before: tokens before the first patch, such as one for the class.
    """

    png: bytes
    rows: int
    columns: int
    before: int
