"""A scan in words: the same sentences in the terminal and at the top of the report."""

from statistics import median
from typing import NamedTuple

from attentropy.core.notebook.words import plural
from attentropy.models.diagnose import Finding
from attentropy.models.losses.cause import Cause
from attentropy.models.losses.paired import Paired
from attentropy.models.record.coverage import summary
from attentropy.scans.schema import Excess, HeadTable, Measure, Scan


class Tile(NamedTuple):
    """One figure of the summary: what it is, the number, and a remark."""

    label: str
    value: str
    note: str


def headline(scan: Scan) -> str:
    """One sentence: the verdict, with the cause where it breaks."""
    if scan.verdict is not None:
        doubts = "".join(f" But {warning}." for warning in scan.input.warnings)
        return scan.verdict.sentence + doubts
    return f"Attention measured at {scan.lengths[-1] if scan.lengths else 0:,} tokens."


def healthy(scan: Scan) -> str:
    """The sentence of a scan in which nothing breaks.

    Args:
        scan: with measures.
    """
    known = [m for m in scan.measures if m.loss is not None]
    longest = scan.lengths[-1]
    if not known:
        return f"Healthy up to {longest:,} tokens: no head is broken."
    first, last = known[0], known[-1]
    moved = f"{first.loss:.3f} at {first.length:,} and {last.loss:.3f} at {last.length:,} tokens"
    held = f"the loss is {moved}" if first is not last else f"the loss is {last.loss:.3f}"
    return f"Healthy up to {longest:,} tokens: {held}, and no head is broken."


def faulty(scan: Scan) -> str:
    """The sentence of a scan that finds broken heads.

    Args:
        scan: with findings.
    """
    sick = len(troubled(scan))
    heads = "1 head is" if sick == 1 else f"{sick:,} heads are"
    kinds = ", ".join(_trouble(f) for f in scan.findings if f.severity != "note")
    return f"{heads} broken ({kinds}); the loss does not rise up to {scan.lengths[-1]:,} tokens."


def broken(excess: list[Excess], at: int, cause: Cause | None) -> str:
    """The sentence of a model that breaks: where, and why.

    Args:
        excess: the loss beyond the trained length, compared with truncation.
        at: where it breaks.
        cause: from the probes, if they ran.
    """
    own = ", its trained length" if at == excess[0].start else ""
    why = None if cause is None else cause.words
    return f"Breaks at about {at:,} tokens{own}" + (f": {why}." if why else ".")


def _damage(scan: Scan) -> list[str]:
    """How much is lost, from where on, and how much of it by what."""
    found = scan.verdict
    if found is None or not found.excess or found.noticed_at is None:
        return []
    end, trained = found.excess[-1], found.excess[0].start
    said = (
        f"From {found.noticed_at:,} tokens on the loss is above that of truncation to {trained:,}, "
        f"by {_signed(end.change)} nats per token at {end.stop:,}."
    )
    return [said] if found.cause is None else [said, found.cause.sentence]


def risen(scan: Scan, length: int, change: Paired) -> str:
    """The sentence of a scan in which a longer text raises the loss within the trained length.

    Args:
        scan: with measures.
        length: the shorter length.
        change: of the loss of the same text, to the longest length.
    """
    return (
        f"Breaks beyond {length:,} tokens: the same text loses {_signed(change)} nats per token "
        f"more in windows of {scan.lengths[-1]:,}."
    )


def _signed(change: Paired) -> str:
    error = "" if change.error is None else f" ± {change.error:.2f}"
    return f"{change.difference:.2f}{error}"


def sentences(scan: Scan) -> list[str]:
    """The summary: health, what is wrong, growth with length, language-model perplexity."""
    total = scan.heads
    sick = len(troubled(scan))
    said = [*_damage(scan), *_probes(scan)]
    healthy = f"{total - sick:,} of {plural(total, 'head')} {'is' if total == 1 else 'are'} healthy"
    said.append(f"{healthy}{_troubles(scan)}.")
    said += [_trained(scan), *_special(scan), *_seen(scan)]
    middle = median_slope(scan)
    if middle is not None:
        said.append(
            f"Entropy grows with the logarithm of the length at a median slope of {middle:.2f} "
            "(0 is invariant, 1 spreads over all keys); "
            "this describes the model and is not a fault."
        )
    windowed = sum(slope.against == "visible" for layer in scan.slopes for slope in layer)
    if windowed:
        said.append(
            f"A window limits what {plural(windowed, 'head')} see{'s' if windowed == 1 else ''}, "
            "whatever the length of the text; their slope is taken against the keys that they can "
            "see, and left out of the median."
        )
    perplexities = _perplexities(scan)
    if perplexities:
        said.append(perplexities)
    said += [f"Length {skip.length:,} was left out: {skip.reason}." for skip in scan.skipped]
    if not scan.complete:
        said.append("The scan was stopped before its end; attentropy scan --resume continues it.")
    return said


def _trained(scan: Scan) -> str:
    about = scan.model
    if about.trained_length is None:
        return (
            "The trained length is not known, so nothing beyond it is judged; "
            "give it with --trained N."
        )
    by = f" ({about.trained_source})" if about.trained_source else ""
    return f"The trained length is {about.trained_length:,}{by}."


def _probes(scan: Scan) -> list[str]:
    """What the distance probe found, and why a probe does not exist."""
    cause = None if scan.verdict is None else scan.verdict.cause
    if cause is None:
        return []
    far = ", ".join(f"{_share(gap.change)} at {gap.farthest:,}" for gap in cause.gaps)
    said = [f"Short windows with the same distances lose {far} nats per token."] if far else []
    return [*said, cause.missing] if cause.missing else said


def _share(change: Paired) -> str:
    return f"{change.difference:+.2f}" + ("" if change.error is None else f" ± {change.error:.2f}")


def _special(scan: Scan) -> list[str]:
    return [f"{scan.input.special}."] if scan.input.special else []


def _seen(scan: Scan) -> list[str]:
    return [summary(scan.coverage)] if scan.coverage else []


def tiles(scan: Scan) -> list[Tile]:
    """The figures beside the headline."""
    total = scan.heads
    healthy = total - len(troubled(scan))
    found = [Tile("Healthy heads", f"{healthy:,} / {total:,}", f"{healthy / total:.0%}")]
    middle = median_slope(scan)
    if middle is not None:
        found.append(Tile("Slope of H on log n", f"{middle:.2f}", "median; a description"))
    best = home(scan)
    if best is not None:
        share = median_of(best.table("normalized_entropy"))
        if share is not None:
            note = f"of the maximum, at {best.length:,}"
            found.append(Tile("Median entropy", f"{share:.0%}", note))
    last = next((m for m in reversed(scan.measures) if m.perplexity is not None), None)
    if last is not None and best is not None and best.perplexity is not None:
        longer = f"; {last.perplexity:.3g} at {last.length:,}" if last is not best else ""
        note = f"at {best.length:,}{longer}"
        found.append(Tile("Text perplexity", f"{best.perplexity:.3g}", note))
    return found


def home(scan: Scan) -> Measure | None:
    """The measure nearest below the trained length, or the first: the reference for heads."""
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
