"""What attention returns.

Shape letters, defined here for the whole library: B batch, H query heads, Hk key heads (Hk divides
H), Q queries, K keys, D width of queries and keys, Dv width of values. A suffix such as `_BHQ` on a
name gives its shape.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree

from attentropy.core.errors import ArgumentError, ArgumentTypeError, AttentropyError
from attentropy.core.notebook.cards import card
from attentropy.core.notebook.words import plural
from attentropy.core.statistics import ALIASES, TABLE

COMPUTED = frozenset(
    (
        "entropy",
        "varentropy",
        "lse",
        "max_logit",
        "argmax",
        "collision",
        "sink_mass",
        "mass",
    )
)
"""Statistics that kernels compute."""

_DERIVED = {
    "perplexity": ("entropy",),
    "normalized_entropy": ("entropy",),
    "deficit": ("entropy",),
    "density": ("collision", "mass"),
    "sparsity": ("collision", "mass"),
    "top_probability": ("max_logit", "lse"),
    "gradient_flow": ("entropy", "collision"),
    "mean_logit": ("lse", "entropy"),
    "visible": (),
}
KNOWN = COMPUTED | _DERIVED.keys()
"""All names that `stats=` takes."""
_NAMED = {"none": frozenset[str](), "entropy": frozenset(("entropy",)), "all": COMPUTED}


class NotAskedError(AttentropyError, AttributeError):
    """A statistic was read that `stats=` did not ask for.

    Args:
        name: of the statistic.
    """

    def __init__(self, name: str) -> None:
        super().__init__(
            f"stats.{name} was not computed, because stats= did not ask for it; "
            f"ask for it with stats={{{name!r}, ...}} or stats='all'"
        )


def asked(stats: str | Iterable[str]) -> frozenset[str]:
    """The statistics that kernels must compute to serve `stats=`.

    Args:
        stats: "none", "entropy", "all", or names of statistics, derived ones among them.

    >>> sorted(asked({"perplexity", "top_probability"}))
    ['entropy', 'lse', 'max_logit']
    """
    if isinstance(stats, str):
        if stats not in _NAMED:
            raise ArgumentError("stats", "'none', 'entropy', 'all' or a set of names", repr(stats))
        return _NAMED[stats]
    try:
        names = frozenset(stats)
    except TypeError:
        rule = "'none', 'entropy', 'all' or a set of names"
        raise ArgumentTypeError("stats", rule, repr(stats)) from None
    unknown = sorted(map(str, names - KNOWN))
    if unknown:
        raise ArgumentError("stats", f"names out of {sorted(KNOWN)}", f"also {unknown}")
    return frozenset(part for name in names for part in _DERIVED.get(name, (name,)))


@dataclass(frozen=True, eq=False, repr=False)
class Stats:
    """Statistics of every row of attention, each [B,H,Q]; natural logarithms.

    With s the final logits of a row and p its weights:

    Attributes:
        entropy: H = -sum p log p; None where the weights are not probabilities.
        lse: log sum e^s; None where the weights are not probabilities.
        max_logit: max s over the visible keys; None, like argmax, for weights without logits.
        argmax: the visible key that has it (the lowest of ties), -1 for a row that sees nothing.
        collision: sum p^2, the chance that two draws meet.
        visible: how many keys the row may see.
        sink_mass: probability of the sink, where there is one; the sink counts in entropy, lse,
            collision and varentropy, not in max_logit, argmax and visible.
        mass: sum |p| where the weights are not probabilities, else None.
        varentropy: V = sum p (log p + H)^2, the variance of the surprise -log p; None where the
            weights are not probabilities. Without bias and softcap, dH/dlog(scale) = -V.

    Gradients flow through entropy, lse, collision, varentropy and sink_mass. A statistic that
    `stats=` did not ask for is absent: reading it raises NotAskedError.
    """

    entropy: Tensor | None
    lse: Tensor | None
    max_logit: Tensor | None
    argmax: Tensor | None
    collision: Tensor
    visible: Tensor
    sink_mass: Tensor | None = field(default_factory=lambda: None)
    mass: Tensor | None = field(default_factory=lambda: None)
    varentropy: Tensor | None = field(default_factory=lambda: None)

    if not TYPE_CHECKING:  # a checker would take every name for a statistic

        def __getattr__(self, name: str) -> Any:
            # called for what is absent, and for a property that reads what is absent
            known = vars(self)
            if name in known.get("_names", ()):
                value = known[name] = known["_read"](name)
                return value
            if name in KNOWN:
                raise NotAskedError(name)
            raise AttributeError(f"Stats has no {name!r}")

    @classmethod
    def later(cls, names: frozenset[str], read: Callable[[str], Tensor | None]) -> "Stats":
        """Statistics that are made when they are read for the first time.

        Args:
            names: of the fields; the others are absent.
            read: gives a statistic by its name.
        """
        stats = object.__new__(cls)
        known = vars(stats)
        known["_names"], known["_read"] = names, read
        return stats

    def present(self) -> dict[str, Tensor | None]:
        """All statistics that are not absent, by name."""
        known = vars(self)
        if "_names" not in known:
            return known
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name in known["_names"]}

    def __getstate__(self) -> dict[str, Tensor | None]:
        return self.present()

    def __repr__(self) -> str:
        return f"Stats({', '.join(f'{name}={value}' for name, value in self.present().items())})"

    def _repr_html_(self) -> str:
        heads = self.per_head()
        names = [name for name in heads if name == "rows" or TABLE[name].shown]
        batch, count, queries = self.visible.shape
        columns = [heads[name].tolist() for name in names]
        return card(
            "Attention statistics",
            notes=[
                f"{batch} × {plural(count, 'head')} × {plural(queries, 'query row')}; "
                "per head, over rows with a choice"
            ],
            head=["head", *("rows" if name == "rows" else TABLE[name].label for name in names)],
            rows=[(head, *cells) for head, cells in enumerate(zip(*columns, strict=True))],
        )

    def only(self, names: Collection[str]) -> "Stats":
        """The same statistics without those that are not named; `visible` always stays.

        Args:
            names: of attentropy.core.results.COMPUTED.
        """
        if all(name in names for name in COMPUTED):
            return self
        return _made({n: x for n, x in self.present().items() if n in names or n == "visible"})

    @property
    def perplexity(self) -> Tensor | None:
        """e^H, the effective number of keys that the row attends to."""
        return None if self.entropy is None else self.entropy.exp()

    @property
    def normalized_entropy(self) -> Tensor | None:
        """H / log visible; NaN where visible < 2, because such a row has no choice."""
        if self.entropy is None:
            return None
        few = self.visible < 2
        share = self.entropy / self._log_visible(self.entropy).masked_fill(few, 1.0)
        return share.masked_fill(few, torch.nan)

    @property
    def density(self) -> Tensor:
        """S = E|p| / sqrt(E p^2) over the visible keys: 1 is flat, 1/sqrt(visible) one-hot.

        NaN where every weight is zero, or no key is visible.
        """
        # NaN is filled in last: passed through a division, it would be the gradient of the row
        none = (self.collision == 0) | (self.visible == 0)
        square = self.visible.to(self.collision.dtype) * self.collision
        root = square.masked_fill(none, 1.0).sqrt()
        mass = torch.ones_like(root) if self.mass is None else self.mass
        return (mass / root).masked_fill(none, torch.nan)

    @property
    def sparsity(self) -> Tensor:
        """The documents' name for `density` S: 1 is dense, 1/sqrt(visible) the sparsest row."""
        return self.density

    @property
    def deficit(self) -> Tensor | None:
        """Log visible - H, the divergence of the row from uniform; 0 for a row without keys."""
        return None if self.entropy is None else self._log_visible(self.entropy) - self.entropy

    @property
    def top_probability(self) -> Tensor | None:
        """The weight of the strongest key; 0 for a row that sees nothing."""
        if self.lse is None or self.max_logit is None:
            return None
        blind = self.visible == 0
        return (self.max_logit - self.lse.masked_fill(blind, torch.inf)).exp()

    @property
    def gradient_flow(self) -> Tensor | None:
        """1 - sum p^2, the trace of the softmax Jacobian; 0 where attention is saturated."""
        if self.entropy is None:
            return None
        return (1 - self.collision).masked_fill(self.visible == 0, 0.0)

    @property
    def mean_logit(self) -> Tensor | None:
        """The mean of s under p, which is lse - H; -inf for a row that sees nothing."""
        if self.lse is None or self.entropy is None:
            return None
        return self.lse - self.entropy

    def per_head(self) -> "HeadStats":
        """Each statistic of the table over batch and queries, [H], from rows that have a choice.

        Rows with fewer than two visible keys are left out; a head that has no other rows gives NaN.
        `max_logit` is the largest, the others are means.
        """
        chosen = self.visible >= 2
        found = {}
        for name in _READ:
            value: Tensor | None = getattr(self, name, None)
            if value is None:
                continue
            # a row whose weights are all zero is neither sparse nor dense
            counted = chosen & (self.collision != 0) if name == "density" else chosen
            found[name] = (_largest if name in _MAXIMA else _mean)(value, chosen=counted)
        return HeadStats(rows=chosen.sum((0, 2)), **found)

    def _log_visible(self, like: Tensor) -> Tensor:
        return self.visible.clamp(min=1).to(like.dtype).log()


def _mean(value_BHQ: Tensor, *, chosen: Tensor) -> Tensor:
    count = chosen.sum((0, 2))
    kept = value_BHQ.double().masked_fill(~chosen, 0.0)
    return kept.sum((0, 2)) / count.double().masked_fill(count == 0, torch.nan)


def _largest(value_BHQ: Tensor, *, chosen: Tensor) -> Tensor:
    rows = value_BHQ.double().masked_fill(~chosen, -torch.inf).transpose(0, 1).flatten(1)
    top = rows.amax(1) if rows.shape[1] else rows.new_zeros(len(rows))
    return top.masked_fill(~chosen.any(2).any(0), torch.nan)


@dataclass(frozen=True, eq=False, kw_only=True)
class HeadStats:
    """Statistics per head, each [H] float64; also a mapping from name to tensor.

    Attributes are those of the table of statistics that `Stats` has; those that do not apply to
    the weights, or were not asked for, are None and are not in the mapping. `rows` is the
    number of rows averaged.
    """

    rows: Tensor
    entropy: Tensor | None = None
    normalized_entropy: Tensor | None = None
    perplexity: Tensor | None = None
    varentropy: Tensor | None = None
    density: Tensor | None = None
    max_logit: Tensor | None = None
    top_probability: Tensor | None = None
    sink_mass: Tensor | None = None
    gradient_flow: Tensor | None = None
    deficit: Tensor | None = None
    visible: Tensor
    lse: Tensor | None = None
    mean_logit: Tensor | None = None
    collision: Tensor | None = None

    @property
    def sparsity(self) -> Tensor | None:
        """The documents' name for `density` S: 1 is dense."""
        return self.density

    def keys(self) -> list[str]:
        """Names of the statistics that apply."""
        return [f.name for f in fields(self) if getattr(self, f.name) is not None]

    def __getitem__(self, name: str) -> Tensor:
        """A statistic by its name or its symbol: `heads["entropy"]`, `heads["H"]`."""
        name = ALIASES.get(name, name)
        if name not in self.keys():
            raise KeyError(name)
        value: Tensor = getattr(self, name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())


_READ = tuple(f.name for f in fields(HeadStats) if f.name in TABLE)
_MAXIMA = tuple(name for name in _READ if TABLE[name].averaging == "maximum")


class Attended(NamedTuple):
    """The output [B,H,Q,Dv] of attention and the statistics of its rows."""

    out: Tensor
    stats: Stats


def _made(present: dict[str, Tensor | None]) -> Stats:
    """Statistics of which others are absent."""
    stats = object.__new__(Stats)
    for name, value in present.items():
        object.__setattr__(stats, name, value)
    return stats


def _flat(stats: Stats | HeadStats) -> tuple[list[Tensor | None], list[str]]:
    present = stats.present() if isinstance(stats, Stats) else vars(stats)
    return list(present.values()), list(present)


def _flat_with_keys(stats: Stats | HeadStats) -> tuple[list[tuple[Any, Tensor | None]], list[str]]:
    values, names = _flat(stats)
    pairs = zip(names, values, strict=True)
    return [(_pytree.GetAttrKey(name), value) for name, value in pairs], names


def _unflat(values: Iterable[Tensor | None], names: list[str]) -> Stats:
    return _made(dict(zip(names, values, strict=True)))


# so that torch.export and torch.func find the tensors in what a layer returns
_pytree.register_pytree_node(
    Stats,
    _flat,
    _unflat,
    serialized_type_name="attentropy.Stats",
    flatten_with_keys_fn=_flat_with_keys,
)
_pytree.register_pytree_node(
    HeadStats,
    _flat,
    lambda values, names: HeadStats(**dict(zip(names, values, strict=True))),
    serialized_type_name="attentropy.HeadStats",
    flatten_with_keys_fn=_flat_with_keys,
)
_pytree._register_namedtuple(Attended, serialized_type_name="attentropy.Attended")
