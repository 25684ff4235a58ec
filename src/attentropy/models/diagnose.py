"""diagnose(): which heads have a problem, the evidence, and what it means.

    with at.watch(model) as w:
        model(**batch)
    for finding in at.diagnose(w.heads()):
        print(finding)

A warning names something that costs precision or leaves a head without effect: numbers that are not
finite, logits that the precision rounds, heads that are collapsed or dead. Everything else is a
note: it describes a head, and only the loss shows whether it costs anything. docs/thresholds.md
lists every finding with its formula, its threshold, when it is harmless and what to do.

Rows of several lengths may be given together: findings are made at each head's longest length,
and the growth of entropy is described over all of them.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Literal

import msgspec

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.core.language.speaking import told
from attentropy.core.notebook.cards import card
from attentropy.core.statistics import HeadRow, by_place
from attentropy.models.slope import slopes

Severity = Literal["critical", "warning", "note"]
ORDER: tuple[Severity, ...] = ("critical", "warning", "note")
SPACING = {"bfloat16": 2.0**-7, "float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Where a head stops being healthy.

    Attributes:
        random_spread: near-uniform heads are less selective than random scores of this standard
            deviation, whose expected deficit log n - H is spread^2 (n - 1) / (2 n).
        collapsed_perplexity: a collapsed head looks at fewer keys than this, on average.
        least_flow: a saturated head passes less of the gradient than this (1 - sum p^2).
        most_logit: beyond it bfloat16 logits are rounded by 0.25 or more, so weights by 28 %.
            Other precisions reach this rounding at logits that are larger by the ratio of their
            spacings: float16 at 400, float32 far beyond what models have.
        critical_logit: rounding by 0.5 and more, in the same way.
        dtype: the precision that the model runs in.
        sink: the share of attention on the first key or a learned sink that makes a sink head.
        dead_norm: a dead head writes less than this share of its layer's median output norm.
        likeness: cosine between the weights of duplicate heads.
        slope: growth of entropy per log n from which it is noted; 0 is invariant, 1 is that of
            fixed random scores. Heads that a window limits are left out: what they see does not
            grow with the text.
        positional: cosine by distance beyond which a head looks at positions alone.
        least_visible: rows that see fewer keys, on average, are not judged.
        score_range: the most that logits of a row can differ, where the score is bounded (for
            QK-norm 2 * scale * |q| * |k|); None if it is not.
        focus: heads of bounded scores should be able to give this share to one key.
    """

    random_spread: float = 0.2
    collapsed_perplexity: float = 1.1
    least_flow: float = 0.05
    most_logit: float = 50.0
    critical_logit: float = 88.0
    dtype: str = "bfloat16"
    sink: float = 0.6
    dead_norm: float = 0.02
    likeness: float = 0.995
    slope: float = 0.8
    positional: float = 0.97
    least_visible: float = 4.0
    score_range: float | None = None
    focus: float = 0.5

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name == "dtype" or (value is None and one.name == "score_range"):
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ArgumentTypeError(f"Thresholds: {one.name}", "a number", repr(value))
            if not value >= 0:
                raise ArgumentError(f"Thresholds: {one.name}", ">= 0", value)
        if self.dtype not in SPACING:
            raise ArgumentError("Thresholds: dtype", f"one of {tuple(SPACING)}", repr(self.dtype))

    @property
    def room(self) -> float:
        """How much larger than in bfloat16 a logit may be for the same rounding."""
        return SPACING["bfloat16"] / SPACING[self.dtype]


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One observation about some heads.

    Attributes:
        name: what it is, in two or three words.
        severity: "critical", "warning" or "note".
        heads: the heads, each (index of its place, head).
        labels: the same heads by the names of their layers.
        evidence: what was measured.
        advice: what it means, and what to do.
        call: the call that was tried on the text and helps; "" if none was.
    """

    name: str
    severity: Severity
    heads: list[tuple[int, int]]
    labels: list[str]
    evidence: str
    advice: str
    call: str = ""

    def _repr_html_(self) -> str:
        return card(
            f"{told(self.severity)}: {told(self.name)}",
            notes=[", ".join(self.labels), told(self.evidence), told(self.advice)],
        )

    def __str__(self) -> str:
        shown = ", ".join(self.labels[:4])
        more = f" and {len(self.labels) - 4} more" if len(self.labels) > 4 else ""
        where = told(f"{self.severity}: {self.name} in {shown}{more}.")
        gap = " " if where.endswith(".") else ""
        return gap.join([where, told(self.evidence), told(self.advice)])


class Findings(list[Finding]):
    """Findings, the most serious first: a list that notebooks show as a table."""

    def _repr_html_(self) -> str:
        said = [] if self else [told("every head is healthy")]
        rows = [
            (told(f.severity), told(f.name), len(f.heads), told(f.evidence), told(f.advice))
            for f in self
        ]
        head = [told(title) for title in ("", "finding", "heads", "evidence", "advice")]
        return card(told("Findings"), notes=said, head=head if self else [], rows=rows)


def diagnose(rows: Iterable[HeadRow], *, thresholds: Thresholds | None = None) -> list[Finding]:
    """Findings, the most serious first; none if every head is healthy.

    Args:
        rows: rows of `watch(...).heads()`, of one length or of several.
        thresholds: where a head stops being healthy; `Thresholds()` by default.
    """
    if not isinstance(rows, Iterable):
        raise ArgumentTypeError("rows", "rows of watch(...).heads()", type(rows).__name__)
    rows = list(rows)
    for row in rows:
        if not isinstance(row, HeadRow):
            raise ArgumentTypeError("rows", "rows of watch(...).heads()", type(row).__name__)
    limits = Thresholds() if thresholds is None else thresholds
    here = _longest(rows)
    found = [finding for check in CHECKS for finding in check(here, limits)]
    return Findings(by_severity([*found, *growing(rows, limits)]))


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, the most serious first.

    Args:
        findings: in any order.
    """
    return sorted(findings, key=lambda finding: ORDER.index(finding.severity))


def _longest(rows: list[HeadRow]) -> list[HeadRow]:
    """Each head at its longest length."""
    best: dict[tuple[str, int, str, int], HeadRow] = {}
    for row in rows:
        key = (row.layer, row.call, row.phase, row.head)
        if key not in best or row.length >= best[key].length:
            best[key] = row
    return list(best.values())


def _finding(name: str, severity: Severity, rows: list[HeadRow], **words: str) -> Iterator[Finding]:
    if rows:
        yield Finding(
            name=name,
            severity=severity,
            heads=[(row.index, row.head) for row in rows],
            labels=[row.label for row in rows],
            **words,
        )


def _span(rows: list[HeadRow], name: str) -> str:
    """The values of a statistic over some heads, in words."""
    values = [getattr(row, name) for row in rows]
    low, high = min(values), max(values)
    return f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g}"


def _judged(rows: list[HeadRow], limits: Thresholds) -> list[HeadRow]:
    return [row for row in rows if row.visible >= limits.least_visible]


def random_deficit(visible: float, spread: float) -> float:
    """Expected log n - H of n random scores of a small spread: spread^2 (n - 1) / (2 n).

    Args:
        visible: the number n of keys.
        spread: the standard deviation of the scores.
    """
    return spread**2 * (visible - 1) / (2 * visible)


def is_uniform(row: HeadRow, limits: Thresholds) -> bool:
    """True if the head is less selective than random scores of `limits.random_spread`.

    Args:
        row: the head.
        limits: where a head stops being healthy.
    """
    return row.deficit < random_deficit(row.visible, limits.random_spread)


def _not_finite(rows: list[HeadRow], limits: Thresholds) -> Iterator[Finding]:
    lost = [row for row in rows if row.rows and not math.isfinite(row.entropy + row.max_logit)]
    yield from _finding(
        "not finite",
        "critical",
        lost,
        evidence="Entropy or logits are NaN or infinite.",
        advice="Outputs after these heads are worthless. Look for overflow in queries and keys, "
        "and for weights or inputs that are not finite.",
    )


def _exploding(rows: list[HeadRow], limits: Thresholds) -> Iterator[Finding]:
    most, critical = limits.most_logit * limits.room, limits.critical_logit * limits.room
    rounded = [row for row in rows if most < row.max_logit < math.inf]
    if rounded:
        yield from _finding(
            "exploding logits",
            "critical" if any(row.max_logit > critical for row in rounded) else "warning",
            rounded,
            evidence=f"The largest logits are {_span(rounded, 'max_logit')} "
            f"(limit {most:g} in {limits.dtype}).",
            advice=f"{limits.dtype} rounds such logits by 0.25 and more, and weights by 28 %: "
            "compute attention in a higher precision.",
        )
    large = [row for row in rows if limits.most_logit < row.max_logit <= most]
    if large:
        yield from _finding(
            "large logits",
            "note",
            large,
            evidence=f"The largest logits are {_span(large, 'max_logit')}.",
            advice=f"Harmless in {limits.dtype}; bfloat16 would round them by 0.25 and more.",
        )


def _uniform(rows: list[HeadRow], limits: Thresholds) -> Iterator[Finding]:
    flat = [row for row in _judged(rows, limits) if is_uniform(row, limits)]
    if flat:
        yield from _finding(
            "near-uniform",
            "note",
            flat,
            evidence=f"Entropy is {_span(flat, 'normalized_entropy')} of its maximum: less "
            f"selective than random scores of spread {limits.random_spread:g}.",
            advice="These heads average their values. Some models use a few such heads; others "
            "can do without them: compare the loss with the head pruned.",
        )


def _collapsed(rows: list[HeadRow], limits: Thresholds) -> Iterator[Finding]:
    sharp = [
        row
        for row in _judged(rows, limits)
        if row.perplexity < limits.collapsed_perplexity and not _has_reason(row, limits)
    ]
    if sharp:
        yield from _finding(
            "collapsed",
            "warning",
            sharp,
            evidence=f"A query looks at {_span(sharp, 'perplexity')} keys of "
            f"{_span(sharp, 'visible')}.",
            advice="Each query copies one key that is neither the first nor the previous one: "
            "the head cannot weigh what it sees.",
        )


def _has_reason(row: HeadRow, limits: Thresholds) -> bool:
    """A sink head and a previous-token head are sharp by nature."""
    return row.sink_mass > limits.sink or row.previous_share > 0.9


def _saturated(rows: list[HeadRow], limits: Thresholds) -> Iterator[Finding]:
    stuck = [
        row
        for row in _judged(rows, limits)
        if row.gradient_flow < limits.least_flow and not _has_reason(row, limits)
    ]
    if stuck:
        yield from _finding(
            "saturated",
            "note",
            stuck,
            evidence=f"The softmax passes {_span(stuck, 'gradient_flow')} of the gradient "
            f"(least {limits.least_flow:g}).",
            advice="Harmless in a model that is used as it is; little gradient passes through "
            "these heads.",
        )


def _sinks(rows: list[HeadRow], limits: Thresholds) -> Iterator[Finding]:
    sinks = [row for row in _judged(rows, limits) if row.sink_mass > limits.sink]
    if sinks:
        yield from _finding(
            "sink",
            "note",
            sinks,
            evidence=f"The first key takes {_span(sinks, 'sink_mass')} of the attention.",
            advice="The head rests on the first token when it has nothing to say: keep that "
            "token in a sliding window and in a trimmed cache.",
        )


def _dead(rows: list[HeadRow], limits: Thresholds) -> Iterator[Finding]:
    dead: list[HeadRow] = []
    for heads in by_place(rows):
        norms = [row.output_norm for row in heads if math.isfinite(row.output_norm)]
        middle = statistics.median(norms) if norms else math.nan
        dead += [row for row in heads if row.output_norm <= limits.dead_norm * middle]
    if dead:
        yield from _finding(
            "dead",
            "warning",
            dead,
            evidence=f"The output norm is {_span(dead, 'output_norm')}, under "
            f"{limits.dead_norm:.0%} of the layer's median.",
            advice="The head writes next to nothing: it can be pruned.",
        )


def _duplicates(rows: list[HeadRow], limits: Thresholds) -> Iterator[Finding]:
    alike = [
        row
        for row in _judged(rows, limits)
        if row.likeness > limits.likeness
        and not is_uniform(row, limits)
        and not _has_reason(row, limits)
    ]
    if alike:
        pairs = ", ".join(f"{row.label} and {row.twin}" for row in alike[:3] if row.twin >= 0)
        yield from _finding(
            "duplicates",
            "note",
            alike,
            evidence=f"Weights agree with a cosine of {_span(alike, 'likeness')}: {pairs}.",
            advice="One of each pair may be merged or pruned.",
        )


def _positional(rows: list[HeadRow], limits: Thresholds) -> Iterator[Finding]:
    fixed = [
        row
        for row in _judged(rows, limits)
        if not is_uniform(row, limits)
        and row.sink_mass <= limits.sink
        and (row.previous_share > 0.9 or row.positional > limits.positional)
    ]
    if fixed:
        yield from _finding(
            "positional only",
            "note",
            fixed,
            evidence=f"Weights follow the distance with a cosine of {_span(fixed, 'positional')}; "
            f"the previous key takes {_span(fixed, 'previous_share')}.",
            advice="The head copies by position, whatever the tokens say; a fixed window would "
            "serve as well.",
        )


def _unfocused(rows: list[HeadRow], limits: Thresholds) -> Iterator[Finding]:
    """Weight <= 1 / (1 + (n - 1) e^-R): bounded scores cannot give one key more."""
    reach = limits.score_range
    if reach is None:
        return
    blunt = [
        row
        for row in _judged(rows, limits)
        if 1 / (1 + (row.visible - 1) * math.exp(-reach)) < limits.focus
    ]
    if blunt:
        yield from _finding(
            "cannot focus",
            "warning",
            blunt,
            evidence=f"Logits within a range of {reach:g} cannot give one of "
            f"{_span(blunt, 'visible')} keys {limits.focus:.0%} of the attention.",
            advice="The scale of the normalised scores is too small for so many keys.",
        )


def growing(rows: list[HeadRow], limits: Thresholds) -> Iterator[Finding]:
    """Heads whose entropy grows with the length of the text, over rows of several lengths.

    Args:
        rows: rows of several lengths.
        limits: from which growth on it is noted.
    """
    growth = {
        key: slope.value
        for key, slope in slopes(rows).items()
        if slope.against == "length" and slope.value is not None and slope.value > limits.slope
    }
    found = [
        row
        for row in _longest([row for row in rows if row.phase == "forward"])
        if (row.layer, row.call, row.head) in growth and not is_uniform(row, limits)
    ]
    if found:
        values = [growth[row.layer, row.call, row.head] for row in found]
        shortest = min(row.length for row in rows)
        yield from _finding(
            "entropy grows with length",
            "note",
            found,
            evidence=f"Entropy grows by {min(values):.2f} to {max(values):.2f} per log n between "
            f"{shortest} and {max(row.length for row in rows)} keys.",
            advice="This describes the head and is not a fault: only the loss shows whether a "
            "longer text costs anything.",
        )


CHECKS: tuple[Callable[[list[HeadRow], Thresholds], Iterator[Finding]], ...] = (
    _not_finite,
    _exploding,
    _uniform,
    _collapsed,
    _saturated,
    _dead,
    _unfocused,
    _sinks,
    _duplicates,
    _positional,
)
