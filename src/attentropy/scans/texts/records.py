"""A text as files and pages hold it: tokens, numbers of each, and where chosen heads look."""

import msgspec

from attentropy.scans.errors import ScanError


class TableLayer(msgspec.Struct, forbid_unknown_fields=True):
    """A layer: its name, its number of heads, and how it attends."""

    name: str
    heads: int
    causal: bool
    kind: str


class TableSide(msgspec.Struct, forbid_unknown_fields=True):
    """Tokens that belong together; see `Side`."""

    name: str
    start: int
    count: int


class TablePicture(msgspec.Struct, forbid_unknown_fields=True):
    """A picture as the model sees it; `png` is base64."""

    png: str
    rows: int
    columns: int
    before: int


class TableGenerated(msgspec.Struct, forbid_unknown_fields=True):
    """Rows of generated tokens.

    Attributes:
        start: place of the first generated token.
        layers: names of the layers that took part, and their numbers of heads.
        surprise: packed, one number for each token.
        numbers: by statistic, packed; for each token the heads of all layers.
    """

    start: int
    layers: list[tuple[str, int]]
    surprise: str
    numbers: dict[str, str]


class TextTable(msgspec.Struct, forbid_unknown_fields=True):
    """One text, in numbers that `packing` makes short.

    Attributes:
        tokens: each token as text.
        left: number of tokens of the text that were not read.
        layers: in the order of the model.
        sides: which tokens belong together.
        scopes: statistics of every token by scope: "all", a layer such as "3", a head such as
            "3.5".
        looks: keys, weights and readers of heads whose weights are here.
        surprise: -log p of the token after each; None if it is not predicted.
        unshown: number of heads whose weights had no room.
        odd: layers that are not shown, with the reason.
        generated: rows of the tokens that the model made.
        picture: what the tokens are patches of.
    """

    tokens: list[str]
    left: int
    layers: list[TableLayer]
    sides: list[TableSide]
    scopes: dict[str, dict[str, str]]
    looks: dict[str, dict[str, str]]
    surprise: str | None = None
    unshown: int = 0
    odd: dict[str, str] = {}
    generated: TableGenerated | None = None
    picture: TablePicture | None = None


def check(table: TextTable) -> None:
    """Check what types cannot express: scopes name heads that exist, and sides hold all tokens.

    Args:
        table: what to check.
    """
    heads = [layer.heads for layer in table.layers]
    known = {"all", *(str(layer) for layer in range(len(heads)))}
    known |= {f"{layer}.{head}" for layer, count in enumerate(heads) for head in range(count)}
    strange = ({*table.scopes} | {*table.looks}) - known
    if strange:
        raise ScanError("text: there is no head {head}", head=min(strange))
    if not {"all", *table.looks} <= {*table.scopes}:
        raise ScanError("text.scopes must have all heads together, and each head of looks")
    ends = [0, *(side.start + side.count for side in table.sides)]
    starts = [*(side.start for side in table.sides), len(table.tokens)]
    if starts != ends:
        raise ScanError("text.sides must hold every token, one side after another")
    if table.generated is not None and not 0 <= table.generated.start <= len(table.tokens):
        raise ScanError("text.generated.start must be the place of a token")
