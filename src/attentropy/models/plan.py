"""A plan: by which factor each head's scale grows with the length; steer takes it."""

import json
import math
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from attentropy.core.errors import AttentropyError
from attentropy.models.steer.changes import Planned

FORMAT = "attentropy.plan"
VERSION = 1
HOLDS = ("entropy", "normalized")
METHODS = ("empirical", "gaussian")


class PlanError(AttentropyError, ValueError):
    """A plan that cannot be read; the message says what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One length before and after: means of entropy over heads; perplexity of a language model."""

    length: int
    entropy_before: float
    entropy_after: float
    perplexity_before: float | None = None
    perplexity_after: float | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Factors of the scale, `factors[layer][head][i]` at `lengths[i]`; between, linear in log n.

    Attributes:
        model: the class that it was made for.
        reference: the length whose entropy is held; factors are 1 up to it.
        hold: "entropy", or "normalized" for H / log n.
        method: "empirical" or "gaussian".
        lengths: increasing, the reference first.
        entropy: [head] of each layer at the reference length.
        spread: standard deviation of a row's logits there.
        unheld: heads whose entropy no factor holds, as (layer, head).
        effects: what the plan did, length by length.
    """

    model: str
    reference: int
    hold: str
    method: str
    lengths: tuple[int, ...]
    factors: dict[str, tuple[tuple[float, ...], ...]]
    entropy: dict[str, tuple[float, ...]]
    spread: dict[str, tuple[float, ...]]
    unheld: tuple[tuple[str, int], ...] = ()
    effects: tuple[Effect, ...] = field(default=())

    def __post_init__(self) -> None:
        _check(self)

    def rule(self, layer: str) -> Planned | None:
        """The factors of a layer; None where the plan has none."""
        factors = self.factors.get(layer)
        return None if factors is None else Planned(self.lengths, factors)

    def to_json(self) -> str:
        """Text that from_json reads."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """The plan in a text; raises PlanError if anything is missing, unknown or out of range."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise PlanError(f"a plan is JSON: {error}") from error
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise PlanError(f"this is no plan (its format is not {FORMAT!r})")
        version = data.pop("version", None)
        if version != VERSION:
            raise PlanError(f"the plan has version {version}; this attentropy reads {VERSION}")
        _check_names(data)
        try:
            return cls(**_typed(data))
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            if isinstance(error, PlanError):
                raise
            raise PlanError(f"the plan does not have the right shape: {error}") from error

    def save(self, path: str | Path) -> None:
        """Write it to a file."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Plan":
        """Read it from a file."""
        return cls.from_json(Path(path).read_text(encoding="utf-8"))

    def table(self) -> Any:
        """Before and after, length by length, as a rich table."""
        from attentropy.models.record.tables import Printed

        columns = ("length", "entropy", "entropy, steered", "perplexity", "perplexity, steered")
        shown = Printed(*columns, title=f"held at {self.reference}: {self.hold}")
        for effect in self.effects:
            numbers = (
                effect.entropy_before, effect.entropy_after,
                effect.perplexity_before, effect.perplexity_after,
            )  # fmt: skip
            shown.add_row(str(effect.length), *("" if n is None else f"{n:.4g}" for n in numbers))
        if self.unheld:
            shown.caption = f"{len(self.unheld)} heads cannot be held"
        return shown


def _check_names(data: dict[str, Any]) -> None:
    known = {one.name for one in fields(Plan)}
    for name in data:
        if name not in known:
            raise PlanError(f"the plan has an unknown field {name!r}")
    for name in sorted(known - {"unheld", "effects"}):
        if name not in data:
            raise PlanError(f"the plan lacks the field {name!r}")


def _typed(data: dict[str, Any]) -> dict[str, Any]:
    return {
        **data,
        "lengths": tuple(data["lengths"]),
        "factors": {k: tuple(tuple(head) for head in v) for k, v in data["factors"].items()},
        "entropy": {k: tuple(v) for k, v in data["entropy"].items()},
        "spread": {k: tuple(v) for k, v in data["spread"].items()},
        "unheld": tuple((layer, head) for layer, head in data.get("unheld", ())),
        "effects": tuple(Effect(**effect) for effect in data.get("effects", ())),
    }


def _check(plan: Plan) -> None:
    if plan.hold not in HOLDS:
        raise PlanError(f"hold must be one of {HOLDS}, got {plan.hold!r}")
    if plan.method not in METHODS:
        raise PlanError(f"method must be one of {METHODS}, got {plan.method!r}")
    lengths = plan.lengths
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 2 for n in lengths)
    rising = all(a < b for a, b in pairwise(lengths))
    if not lengths or not whole or not rising or lengths[0] != plan.reference:
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
