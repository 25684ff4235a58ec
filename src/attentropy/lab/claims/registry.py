"""What a claim is, how a verdict follows from numbers, and the table of all claims.

A measure returns numbers and a verdict computed from them; the expected verdict is only compared.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

HOLDS, COND, APPROX, FALSE, UNCLEAR = "holds", "cond", "approx", "false", "unclear"
MEANINGS = {
    HOLDS: "true as stated",
    COND: "true under the conditions given, shown to fail without them",
    APPROX: "off by the measured error",
    FALSE: "shown false; the correction holds in the same run",
}


OWN = ("ID", "REM")


@dataclass(frozen=True)
class ClaimResult:
    """A verdict and the numbers it was computed from."""

    verdict: str
    numbers: dict[str, float]


@dataclass(frozen=True)
class Claim:
    """One statement of a source document, its correction, and how it is measured."""

    id: str
    statement: str
    expected: str
    correction: str
    measure: Callable[[], ClaimResult]

    @property
    def source(self) -> str:
        """The document (000 to 004), or ID (identities) or REM (Gaussian rows)."""
        return self.id.split("-")[0]

    @property
    def of_documents(self) -> bool:
        """True for a statement of a source document, False for an identity of this library."""
        return self.source not in OWN

    def agrees(self, result: ClaimResult) -> bool:
        """True if the measured verdict is the expected one.

        Args:
            result: what measure() gave.
        """
        return result.verdict == self.expected


_TABLE: dict[str, Claim] = {}


def claim(
    id_: str, expected: str, statement: str, correction: str
) -> Callable[[Callable[[], ClaimResult]], Callable[[], ClaimResult]]:
    """Register the decorated measure under an id of the audit.

    Args:
        id_: id of the audit.
        expected: verdict of the audit.
        statement: what the document says.
        correction: what is right, or sharper.
    """

    def register(measure: Callable[[], ClaimResult]) -> Callable[[], ClaimResult]:
        if id_ in _TABLE:
            raise KeyError(f"claim {id_} is there already")
        _TABLE[id_] = Claim(id_, statement, expected, correction, _quiet(measure))
        return measure

    return register


def _quiet(measure: Callable[[], ClaimResult]) -> Callable[[], ClaimResult]:
    """Counter-examples overflow on purpose; numpy need not say so."""

    @functools.wraps(measure)
    def measured() -> ClaimResult:
        with np.errstate(all="ignore"):
            return measure()

    return measured


def table() -> dict[str, Claim]:
    """All registered claims by id, in the order of the documents."""
    return dict(_TABLE)


def _plain(numbers: dict[str, Any]) -> dict[str, float]:
    return {name: np.asarray(value, float).item() for name, value in numbers.items()}


def holds_if(condition: Any, /, **numbers: Any) -> ClaimResult:
    """Verdict on a statement without conditions: it holds or is false.

    Args:
        condition: does the statement hold?
        numbers: what was measured.
    """
    return ClaimResult(HOLDS if bool(condition) else FALSE, _plain(numbers))


def conditional(inside: Any, outside: Any, /, **numbers: Any) -> ClaimResult:
    """Verdict on a statement with conditions: it holds, holds under them only, or is false.

    Args:
        inside: does it hold where its conditions are met?
        outside: does it hold without them too?
        numbers: what was measured.
    """
    if not bool(inside):
        return ClaimResult(FALSE, _plain(numbers))
    return ClaimResult(HOLDS if bool(outside) else COND, _plain(numbers))


def approximate(
    error: Any, within: float, /, *, sharper: Any = True, **numbers: Any
) -> ClaimResult:
    """Verdict on an approximation: exact, within its error, or false.

    Args:
        error: of the statement.
        within: the largest error of an approximation.
        sharper: is the exact replacement confirmed?
        numbers: what else was measured.
    """
    found = _plain({"error": error} | numbers)
    if not bool(sharper):
        return ClaimResult(UNCLEAR, found)
    size = abs(found["error"])
    return ClaimResult(HOLDS if size < 1e-9 else APPROX if size <= within else FALSE, found)


def refuted(claimed: Any, corrected: Any, /, **numbers: Any) -> ClaimResult:
    """Verdict on a statement that the audit calls false.

    Args:
        claimed: does the statement pass the test?
        corrected: does its correction?
        numbers: what was measured.
    """
    if bool(claimed):
        return ClaimResult(HOLDS, _plain(numbers))
    return ClaimResult(FALSE if bool(corrected) else UNCLEAR, _plain(numbers))


def run(claims: Iterable[Claim]) -> Iterator[tuple[Claim, ClaimResult]]:
    """Measure one claim after another.

    Args:
        claims: what to measure.
    """
    for one in claims:
        yield one, one.measure()
