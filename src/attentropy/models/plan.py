"""A plan: settings of rotary positions and a scale factor for each head; steer() applies it."""

import math
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from attentropy.core import formats
from attentropy.core.errors import AttentropyError
from attentropy.core.notebook.cards import card
from attentropy.core.notebook.words import plural
from attentropy.models.losses.paired import Paired
from attentropy.models.rope.settings import Rope

if TYPE_CHECKING:
    from attentropy.models.steer.changes import Planned

Hold = Literal["entropy", "normalized"]
Method = Literal["empirical", "gaussian"]
HOLDS: tuple[Hold, ...] = get_args(Hold)
METHODS: tuple[Method, ...] = get_args(Method)


class PlanError(AttentropyError, ValueError):
    """A plan that cannot be used; the message says what is wrong with it."""


class Effect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a plan did at one length.

    Attributes:
        length: the number of tokens.
        entropy_before: the mean entropy over heads without the plan.
        entropy_after: the same with the plan.
        perplexity_before: the perplexity of the text, where the model predicts it.
        perplexity_after: the same with the plan.
    """

    length: int
    entropy_before: float | None
    entropy_after: float | None
    perplexity_before: float | None = None
    perplexity_after: float | None = None


class Judged(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a plan does to the loss at the end of a long text.

    Attributes:
        length: tokens of the text.
        last: number of tokens at its end whose loss was compared.
        held_out: True if the plan was made from other texts.
        change: the loss without the plan (before) and with it (after).
        truncation: the loss if the model reads the last `reference` tokens only (before), and
            with the plan (after).
    """

    length: int
    last: int
    held_out: bool
    change: Paired
    truncation: Paired


class Plan(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="format",
    tag="attentropy.plan",
):
    """Factors of the scale, `factors[layer][head][i]` at `lengths[i]`; between, linear in log n.

    Attributes:
        version: that of the file format.
        model: the class that it was made for.
        reference: the length whose entropy is held; factors are 1 up to it.
        hold: "entropy", or "normalized" for H / log n; None if the factors hold neither.
        method: "empirical" or "gaussian"; None if loss chose the factors.
        lengths: increasing, the reference first.
        factors: by layer, `[head][length]`.
        entropy: by layer, `[head]` at the reference length.
        spread: by layer, `[head]`, the standard deviation of a row's logits there.
        unheld: heads whose entropy cannot be held by any factor, as (layer, head).
        effects: what the plan did, length by length.
        rope: settings of rotary positions; None leaves the model's own.
        judged: its effect on the loss at the end of the longest text, compared with truncation;
            None if the model does not predict the next token.
    """

    version: Literal[1] = 1
    model: str
    reference: int
    hold: Hold | None
    method: Method | None
    lengths: tuple[int, ...]
    factors: dict[str, tuple[tuple[float, ...], ...]]
    entropy: dict[str, tuple[float | None, ...]]
    spread: dict[str, tuple[float | None, ...]]
    unheld: tuple[tuple[str, int], ...] = ()
    effects: tuple[Effect, ...] = ()
    rope: Rope | None = None
    judged: Judged | None = None

    @property
    def helps(self) -> bool | None:
        """True if the loss falls by more than two standard errors; None if it was not measured."""
        return None if self.judged is None else self.judged.change.helps

    def __post_init__(self) -> None:
        _check(self)

    def rule(self, layer: str) -> "Planned | None":
        """The factors of a layer; None where the plan has none.

        Args:
            layer: the name of the layer.
        """
        from attentropy.models.steer.changes import Planned

        factors = self.factors.get(layer)
        return None if factors is None else Planned(self.lengths, factors)

    def to_json(self) -> str:
        """Text that from_json reads."""
        return formats.encode(self, indent=1).decode()

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """The plan in a text; raises PlanError if anything is missing, unknown or out of range.

        Args:
            text: what to_json gave.
        """
        return formats.decode(text, cls, name="the plan", error=PlanError)

    def save(self, path: str | Path) -> None:
        """Write the plan to a file.

        Args:
            path: the file.
        """
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Read a plan from a file that `save` or `attentropy scan --calibrate` wrote.

        Args:
            path: the file.
        """
        data = Path(path).read_bytes()
        return formats.decode(data, cls, name=str(path), error=PlanError)

    def _repr_html_(self) -> str:
        said = [_judgement(self.judged)] if self.judged is not None else []
        if self.unheld:
            said.append(f"{plural(len(self.unheld), 'head')} cannot be held")
        return card(
            f"Plan for {self.model}",
            notes=[f"held at {self.reference:,}: {self.hold or 'loss'}", *said],
            head=["length", "entropy", "steered", "perplexity", "steered"],
            rows=[msgspec.structs.astuple(effect) for effect in self.effects],
        )

    def table(self) -> Any:
        """Before and after, length by length, as a rich table."""
        from attentropy.models.record.tables import Printed

        columns = ("length", "entropy", "entropy, steered", "perplexity", "perplexity, steered")
        shown = Printed(*columns, title=f"held at {self.reference}: {self.hold or 'loss'}")
        for effect in self.effects:
            numbers = (
                effect.entropy_before, effect.entropy_after,
                effect.perplexity_before, effect.perplexity_after,
            )  # fmt: skip
            shown.add_row(str(effect.length), *("" if n is None else f"{n:.4g}" for n in numbers))
        said = (
            [f"{len(self.unheld)} head{'s' if len(self.unheld) > 1 else ''} cannot be held"]
            if self.unheld
            else []
        )
        if self.judged is not None:
            said.append(_judgement(self.judged))
        shown.caption = "; ".join(said) or None
        return shown


def _judgement(found: Judged) -> str:
    verdict = "helps" if found.change.helps else "hurts" if found.change.hurts else "is not sure"
    where = f"the last {found.last:,} of {found.length:,} tokens"
    texts = "other texts" if found.held_out else "the same texts"
    return f"it {verdict} on {where} of {texts}: loss {found.change}"


def _check(plan: Plan) -> None:
    """What types cannot say; types too, because nothing checks them in Python."""
    if plan.hold is not None and plan.hold not in HOLDS:
        raise PlanError(f"hold must be one of {HOLDS}, got {plan.hold!r}")
    if plan.method is not None and plan.method not in METHODS:
        raise PlanError(f"method must be one of {METHODS}, got {plan.method!r}")
    lengths = plan.lengths
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 2 for n in lengths)
    rising = whole and all(a < b for a, b in pairwise(lengths))
    if not lengths or not rising or lengths[0] != plan.reference:
        raise PlanError(
            f"lengths must be increasing integers from the reference {plan.reference}, "
            f"got {list(lengths)}"
        )
    for layer, heads in plan.factors.items():
        for head, factors in enumerate(heads):
            if len(factors) != len(lengths) or not all(_positive(f) for f in factors):
                raise PlanError(
                    f"factors of {layer}, head {head} must be {len(lengths)} positive numbers, "
                    f"got {list(factors)}"
                )


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and 0 < value < math.inf
