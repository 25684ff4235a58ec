"""A scan in words: the same sentences in the terminal and at the top of the report."""

from statistics import median
from typing import NamedTuple

from attentropy.models.diagnose import Finding
from attentropy.scans.schema import HeadTable, Measure, Scan


class Tile(NamedTuple):
    """One figure of the summary: what it is, the number, and a remark."""

    label: str
    value: str
    note: str


def headline(scan: Scan) -> str:
    """One sentence: does attention keep its focus over the lengths measured?"""
    longest = scan.lengths[-1] if scan.lengths else 0
    middle = median_slope(scan)
    if middle is None:
        return f"Attention measured at {longest:,} tokens."
    if middle < 0.35:
        return f"Attention keeps its focus up to {longest:,} tokens."
    grade = "loosens" if middle < 0.7 else "blurs"
    return f"Attention {grade} as the text grows to {longest:,} tokens."


def sentences(scan: Scan) -> list[str]:
    """The summary: health, what is wrong, growth with length, language-model perplexity."""
    total = scan.heads
    sick = len(troubled(scan))
    said = [f"{total - sick:,} of {total:,} heads are healthy{_troubles(scan)}."]
    middle = median_slope(scan)
    if middle is not None:
        said.append(
            f"Entropy grows with the logarithm of the length at a median slope of {middle:.2f} "
            "(0 is invariant, 1 is blurring)."
        )
    windowed = sum(slope.against == "visible" for layer in scan.slopes for slope in layer)
    if windowed:
        said.append(
            f"A window limits what {windowed:,} heads see, so that a longer text does not blur "
            "them; their slope is taken against the keys that they can see, and left out of the "
            "median."
        )
    perplexities = _perplexities(scan)
    if perplexities:
        said.append(perplexities)
    said += [f"Length {skip.length:,} was left out: {skip.reason}." for skip in scan.skipped]
    if not scan.complete:
        said.append("The scan was stopped before its end; attentropy scan --resume goes on.")
    return said


def tiles(scan: Scan) -> list[Tile]:
    """The figures beside the headline."""
    total = scan.heads
    healthy = total - len(troubled(scan))
    found = [Tile("Healthy heads", f"{healthy:,} / {total:,}", f"{healthy / total:.0%}")]
    middle = median_slope(scan)
    if middle is not None:
        found.append(Tile("Slope of H on log n", f"{middle:.2f}", "median; 0 invariant, 1 blurs"))
    best = home(scan)
    if best is not None:
        share = median_of(best.table("normalized_entropy"))
        if share is not None:
            note = f"of the most possible, at {best.length:,}"
            found.append(Tile("Median entropy", f"{share:.0%}", note))
    last = next((m for m in reversed(scan.measures) if m.perplexity is not None), None)
    if last is not None and best is not None and best.perplexity is not None:
        longer = f"; {last.perplexity:.3g} at {last.length:,}" if last is not best else ""
        note = f"at {best.length:,}{longer}"
        found.append(Tile("Text perplexity", f"{best.perplexity:.3g}", note))
    return found


def home(scan: Scan) -> Measure | None:
    """The measure nearest below the trained length, or the first: where a head is itself."""
    limit = scan.model.trained_length or 0
    inside = [measure for measure in scan.measures if measure.length <= limit]
    return inside[-1] if inside else next(iter(scan.measures), None)


def troubled(scan: Scan) -> set[tuple[int, int]]:
    """Heads with a finding that is more than a note."""
    return {
        head for finding in scan.findings if finding.severity != "note" for head in finding.heads
    }


def median_slope(scan: Scan) -> float | None:
    """The median slope of entropy on log n, of the heads that see the whole text."""
    numbers = [s.value for layer in scan.slopes for s in layer if s.against == "length"]
    return median_of([numbers])


def median_of(table: HeadTable) -> float | None:
    """The median over all heads that have a number; None if none has."""
    numbers = [number for layer in table for number in layer if number is not None]
    return median(numbers) if numbers else None


def _troubles(scan: Scan) -> str:
    serious = [_trouble(finding) for finding in scan.findings if finding.severity != "note"]
    return f"; the others: {', '.join(serious)}" if serious else ""


def _trouble(finding: Finding) -> str:
    return f"{len(finding.heads):,} {finding.name}"


def _perplexities(scan: Scan) -> str:
    known = [(m.length, m.perplexity) for m in scan.measures if m.perplexity is not None]
    if not known:
        return ""
    listed = ", ".join(f"{value:.4g} at {length:,}" for length, value in known)
    return f"Perplexity of the text: {listed}."
