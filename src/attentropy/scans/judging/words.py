"""A scan in words: the same sentences in the terminal and at the top of the report."""

from statistics import median
from typing import NamedTuple

from attentropy.scans.schema import Finding, Measure, Number, Scan, Table


class Tile(NamedTuple):
    """One figure of the summary."""

    label: str
    value: str
    note: str


def headline(scan: Scan) -> str:
    """One sentence: does attention keep its focus over the lengths measured?"""
    longest = scan.lengths[-1] if scan.lengths else 0
    middle = median_of(scan.slopes)
    if middle is None:
        return f"Attention measured at {longest:,} tokens."
    if middle < 0.35:
        return f"Attention keeps its focus up to {longest:,} tokens."
    grade = "loosens" if middle < 0.7 else "blurs"
    return f"Attention {grade} as the text grows to {longest:,} tokens."


def sentences(scan: Scan) -> list[str]:
    """The summary: health, what is wrong, growth with length, language-model perplexity."""
    total = count_heads(scan)
    sick = len(troubled(scan))
    said = [f"{total - sick:,} of {total:,} heads are healthy{_troubles(scan)}."]
    middle = median_of(scan.slopes)
    if middle is not None:
        said.append(
            f"Entropy grows with the logarithm of the length at a median slope of {middle:.2f} "
            "(0 is invariant, 1 is blurring)."
        )
    perplexities = _perplexities(scan)
    if perplexities:
        said.append(perplexities)
    said += [f"Length {skip.length:,} was left out: {skip.reason}." for skip in scan.skipped]
    if not scan.complete:
        said.append("The scan was stopped before its end; --resume goes on with it.")
    return said


def tiles(scan: Scan) -> list[Tile]:
    """The figures beside the headline."""
    total = count_heads(scan)
    healthy = total - len(troubled(scan))
    found = [Tile("Healthy heads", f"{healthy:,} / {total:,}", f"{healthy / total:.0%}")]
    middle = median_of(scan.slopes)
    if middle is not None:
        found.append(Tile("Slope of H on log n", f"{middle:.2f}", "median; 0 invariant, 1 blurs"))
    best = home(scan)
    if best is not None:
        share = median_of(best.statistics["normalized_entropy"])
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


def count_heads(scan: Scan) -> int:
    """Heads of all layers."""
    return sum(layer.heads for layer in scan.layers)


def median_of(table: Table) -> Number:
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
