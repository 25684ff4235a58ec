"""The table of statistics: everything measured about one attention head, defined in one place.

A field of `HeadRow` that carries a `Statistic` is one row of the table. Which sums a watch keeps,
head rows, `HeadStats`, run stores, scan.json, exports, the report, terminal tables, names in
TensorBoard and docs/reference/statistics.md are all read from it.

In formulas p is one row of attention (one query), s its final logits, n the number of keys that
the query sees, i and j the positions of query and key. Logarithms are natural. A head's number is
taken over the rows that have a choice, that is, see two keys or more.
"""

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

import msgspec

from attentropy.core.statistic import Statistic

if TYPE_CHECKING:
    Number = float
else:
    Number = float | None  # a file holds null where a number is not finite; a row then holds NaN


class HeadRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One head of one attention module: where it is, and its statistics.

    Natural logarithms; NaN where a statistic does not apply. The statistics are described in the
    table of statistics (docs/reference/statistics.md).

    Attributes:
        layer: the module's name in the model.
        index: the place of this row in the order of the model.
        call: 0 for the module's first call in a forward pass, 1 for the second, and so on.
        phase: "forward", or "step" for queries that continue a cache.
        kind: "self" attention, "cross" attention, whose keys come from elsewhere, or "window":
            self-attention that slides along the sequence, or stays within parts of it.
        head: the number of this head.
        heads: the number of heads of the module.
        head_dim: the width of a head; 0 where only the weights are seen.
        causal: True if no query saw a key after its own.
        length: the largest number of keys.
        rows: the number of rows (queries) that were averaged.
        twin: the head of the module with the most similar weights, -1 if there is none.
    """

    layer: str
    index: int
    call: int
    phase: Literal["forward", "step"]
    kind: Literal["self", "cross", "window"]
    head: int
    heads: int
    head_dim: int
    causal: bool
    length: int
    rows: int
    twin: int

    entropy: Annotated[
        Number,
        Statistic(
            symbol="H",
            label="Entropy",
            formula="H = −Σⱼ pⱼ log pⱼ",
            meaning="How spread the attention is: 0 is one key, log n is all keys alike.",
            low="focused",
            high="spread",
            unit="nats",
            range=(0.0, None),
            column="entropy",
            logged=("mean", "min", "max"),
        ),
    ]
    normalized_entropy: Annotated[
        Number,
        Statistic(
            symbol="H / log n",
            label="Normalised entropy",
            formula="H / log n",
            meaning="Entropy as a share of its maximum: comparable between lengths.",
            low="one key",
            high="uniform",
            range=(0.0, 1.0),
            column="H / log n",
            logged=("mean",),
        ),
    ]
    perplexity: Annotated[
        Number,
        Statistic(
            symbol="e^H",
            label="Attention perplexity",
            formula="exp H",
            meaning="The number of keys that a query effectively looks at.",
            low="few keys",
            high="many keys",
            unit="keys",
            range=(1.0, None),
            scale="log",
        ),
    ]
    varentropy: Annotated[
        Number,
        Statistic(
            symbol="V",
            label="Varentropy",
            formula="V = Σⱼ pⱼ (log pⱼ + H)²",
            meaning="The variance of the surprise −log p; without bias and softcap, how fast "
            "entropy falls with the logarithm of the scale.",
            low="uniform or one key",
            high="few keys far above many",
            range=(0.0, None),
            logged=("mean",),
        ),
    ] = math.nan  # files of before have none
    density: Annotated[
        Number,
        Statistic(
            symbol="S",
            label="Density S",
            formula="S = Σⱼ pⱼ / √(n Σⱼ pⱼ²)",
            meaning="1 when all keys weigh alike (dense), 1/√n when one key takes all (sparse); "
            "the documents call S the sparsity.",
            low="sparse",
            high="dense",
            range=(0.0, 1.0),
        ),
    ]
    max_logit: Annotated[
        Number,
        Statistic(
            symbol="max s",
            label="Maximum logit",
            formula="max over rows of maxⱼ sⱼ",
            meaning="The largest score before the softmax; growth in training often comes "
            "before instability.",
            low="small",
            high="large",
            better="low",
            averaging="maximum",
            column="max logit",
            logged=("mean", "max"),
            colours=(0.0, 50.0),
        ),
    ]
    top_probability: Annotated[
        Number,
        Statistic(
            symbol="max p",
            label="Top probability",
            formula="maxⱼ pⱼ",
            meaning="The weight of the key that a query looks at most.",
            low="shared",
            high="one winner",
            range=(0.0, 1.0),
            column="top p",
        ),
    ]
    sink_mass: Annotated[
        Number,
        Statistic(
            symbol="p₀",
            label="Sink mass",
            formula="p of the first key (and of a learned sink)",
            meaning="Attention that rests on the first token and carries no information; sampled "
            "in long calls only.",
            low="no sink",
            high="all in the sink",
            range=(0.0, 1.0),
            sampled="unless rows are kept",
            column="sink",
            logged=("mean", "max"),
        ),
    ]
    output_norm: Annotated[
        Number,
        Statistic(
            symbol="‖o‖",
            label="Output norm",
            formula="‖Σⱼ pⱼ vⱼ‖",
            meaning="How much the head writes; near 0 the head is dead.",
            low="silent",
            high="loud",
            range=(0.0, None),
            scale="log",
            column="output",
            logged=("min",),
        ),
    ]
    gradient_flow: Annotated[
        Number,
        Statistic(
            symbol="1 − Σp²",
            label="Gradient flow",
            formula="1 − Σⱼ pⱼ²",
            meaning="The share of the gradient that passes the softmax; near 0 the head cannot "
            "learn.",
            low="saturated",
            high="learning",
            range=(0.0, 1.0),
            better="high",
            averaging="derived",
            logged=("mean", "min"),
        ),
    ]
    noise_robustness: Annotated[
        Number,
        Statistic(
            symbol="1 / √((e − 1) Σp²)",
            label="Noise robustness",
            formula="1 / √((e − 1) Σⱼ pⱼ²)",
            meaning="Spread of the values over the error that unit Gaussian noise on the scores "
            "makes in the output: it grows with the square root of the number of keys averaged.",
            low="fragile",
            high="robust",
            range=(0.0, None),
            scale="log",
            better="high",
        ),
    ]
    distance: Annotated[
        Number,
        Statistic(
            symbol="E|i − j|",
            label="Attended distance",
            formula="Σⱼ pⱼ |i − j|",
            meaning="How far back (or away) the head looks on average.",
            low="local",
            high="far",
            unit="tokens",
            range=(0.0, None),
            scale="log",
            sampled="always",
            column="distance",
        ),
    ]
    previous_share: Annotated[
        Number,
        Statistic(
            symbol="p(i − 1)",
            label="Previous-token share",
            formula="p of the key just before the query",
            meaning="Near 1 the head copies the previous token, whatever it says.",
            low="none",
            high="all",
            range=(0.0, 1.0),
            sampled="unless rows are kept",
            column="previous",
        ),
    ]
    spread: Annotated[
        Number,
        Statistic(
            symbol="σ(s)",
            label="Score spread",
            formula="standard deviation of sⱼ over the visible keys",
            meaning="How far apart the logits of a row lie; 0 is uniform attention.",
            low="flat",
            high="steep",
            range=(0.0, None),
            scale="log",
            sampled="always",
        ),
    ]
    received_concentration: Annotated[
        Number,
        Statistic(
            symbol="Σr²",
            label="Received concentration",
            formula="Σⱼ rⱼ², rⱼ the share of all attention that key j receives",
            meaning="High when a few keys draw the attention of every query.",
            low="even",
            high="concentrated",
            range=(0.0, 1.0),
            sampled="always",
        ),
    ]
    deficit: Annotated[
        Number,
        Statistic(
            symbol="log n − H",
            label="Deficit",
            formula="log n − H",
            meaning="How far the row is from uniform attention, which has 0.",
            low="uniform",
            high="selective",
            unit="nats",
            range=(0.0, None),
            averaging="derived",
            shown=False,
        ),
    ]
    visible: Annotated[
        Number,
        Statistic(
            symbol="n",
            label="Visible keys",
            formula="n",
            meaning="The number of keys that a query may look at.",
            low="few keys",
            high="many keys",
            unit="keys",
            range=(2.0, None),
            scale="log",
            shown=False,
        ),
    ]
    lse: Annotated[
        Number,
        Statistic(
            symbol="lse",
            label="Log-sum-exp",
            formula="log Σⱼ exp sⱼ",
            meaning="The logarithm of what the softmax divides by.",
            low="small",
            high="large",
            shown=False,
        ),
    ]
    mean_logit: Annotated[
        Number,
        Statistic(
            symbol="E s",
            label="Mean logit",
            formula="Σⱼ pⱼ sⱼ = lse − H",
            meaning="The mean of the logits, weighted by the attention itself.",
            low="small",
            high="large",
            averaging="derived",
            shown=False,
        ),
    ]
    collision: Annotated[
        Number,
        Statistic(
            symbol="Σp²",
            label="Collision",
            formula="Σⱼ pⱼ²",
            meaning="The chance that two keys drawn by the attention are the same.",
            low="shared",
            high="one winner",
            range=(0.0, 1.0),
            shown=False,
        ),
    ]
    logit_range: Annotated[
        Number,
        Statistic(
            symbol="max s − min s",
            label="Logit range",
            formula="maxⱼ sⱼ − minⱼ sⱼ",
            meaning="How far the best key is above the worst.",
            low="flat",
            high="steep",
            range=(0.0, None),
            sampled="always",
            shown=False,
        ),
    ]
    positional: Annotated[
        Number,
        Statistic(
            symbol="cos(p, p̄)",
            label="Positional share",
            formula="cosine between a row and the head's mean row, by distance",
            meaning="Near 1 the head looks at distances, whatever the tokens say.",
            low="by content",
            high="by position",
            range=(0.0, 1.0),
            sampled="always",
            shown=False,
        ),
    ]
    likeness: Annotated[
        Number,
        Statistic(
            symbol="cos(p, p′)",
            label="Likeness",
            formula="cosine between the weights of this head and those of its twin",
            meaning="Near 1 another head of the layer looks at the same keys.",
            low="unlike",
            high="duplicate",
            range=(0.0, 1.0),
            better="low",
            averaging="derived",
            sampled="always",
            shown=False,
        ),
    ]

    def __post_init__(self) -> None:
        for name in NAMES:
            value: float | None = getattr(self, name)
            if value is None or math.isnan(value):  # one NaN, so that equal rows compare equal
                msgspec.structs.force_setattr(self, name, math.nan)

    @property
    def label(self) -> str:
        """The layer with its call where there are several, and the head."""
        return f"{self.place}.{self.head}" + (" (step)" if self.phase == "step" else "")

    @property
    def place(self) -> str:
        """The layer, with the number of its call where it is called more than once."""
        return f"{self.layer}#{self.call}" if self.call else self.layer

    @property
    def sparsity(self) -> float:
        """The documents' name for `density` S: 1 is dense."""
        return self.density

    def keys(self) -> list[str]:
        """Names of all fields, so that `dict(row)` works."""
        return list(self.__struct_fields__)

    def __getitem__(self, name: str) -> Any:
        """A field by its name, or a statistic by its symbol: `row["entropy"]`, `row["H"]`."""
        name = ALIASES.get(name, name)
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return getattr(self, name)


def _rows_of_the_table() -> Iterator[tuple[str, Statistic]]:
    for name, hint in get_type_hints(HeadRow, include_extras=True).items():
        for note in get_args(hint):
            if isinstance(note, Statistic):
                yield name, msgspec.structs.replace(note, name=name)


TABLE: dict[str, Statistic] = dict(_rows_of_the_table())
NAMES = tuple(TABLE)
# other names that rows know statistics by: their symbols, and what the documents call S
ALIASES = {one.symbol: name for name, one in TABLE.items()} | {"sparsity": "density"}
SUMMED = tuple(
    name for name, one in TABLE.items() if one.averaging == "mean" and one.sampled != "always"
)
SAMPLED = tuple(
    name for name, one in TABLE.items() if one.averaging == "mean" and one.sampled == "always"
)


def by_place(rows: Iterable[HeadRow]) -> list[list[HeadRow]]:
    """Rows of one place of the model together: of the same layer, call and phase, in order.

    Args:
        rows: in the order of the model.
    """
    places: dict[tuple[str, int, str], list[HeadRow]] = {}
    for row in rows:
        places.setdefault((row.layer, row.call, row.phase), []).append(row)
    return list(places.values())
