"""What a scan means: slopes and findings from its rows, the verdict, and what helps."""

from attentropy.core.statistics import by_place
from attentropy.models.diagnose import SPACING, Finding, Thresholds, by_severity, diagnose, growing
from attentropy.models.losses.cause import Cause
from attentropy.models.slope import Slope, slopes
from attentropy.scans.judging import words
from attentropy.scans.judging.breaks import breaks_at, rise
from attentropy.scans.schema import PLAN, Advice, Excess, Remedy, Scan, Verdict


def judge(scan: Scan) -> None:
    """Fill in the slopes, findings, verdict and advice of a scan from what was measured."""
    scan.slopes = slopes_of(scan)
    scan.findings = diagnosed(scan)
    scan.verdict = verdict(scan)
    scan.advice = advise(scan)


def slopes_of(scan: Scan) -> list[list[Slope]]:
    """The slope of every head over all lengths, `[layer][head]`."""
    found = slopes(row for measure in scan.measures for row in measure.rows)
    places = by_place(scan.measures[0].rows) if scan.measures else []
    return [[found[row.layer, row.call, row.head] for row in heads] for heads in places]


def diagnosed(scan: Scan) -> list[Finding]:
    """Findings at the trained length, and growth over all lengths; most serious first."""
    home = words.home(scan)
    if home is None:
        return []
    known = scan.model.dtype in SPACING
    limits = Thresholds(dtype=scan.model.dtype) if known else Thresholds()
    everywhere = [row for measure in scan.measures for row in measure.rows]
    here = diagnose(home.rows, thresholds=limits)
    return by_severity([*here, *growing(everywhere, limits)])


def verdict(scan: Scan) -> Verdict | None:
    """The verdict from the measures alone, or from an earlier verdict that knows more."""
    if not scan.measures:
        return None
    before = scan.verdict
    excess = [] if before is None else before.excess
    cause = None if before is None else before.cause
    noticed = None if before is None else before.noticed_at
    return concluded(scan, excess=excess, noticed_at=noticed, cause=cause)


def concluded(
    scan: Scan, *, excess: list[Excess], noticed_at: int | None, cause: Cause | None
) -> Verdict:
    """Breaking comes before faults of heads; without either the model is healthy.

    Args:
        scan: with measures and findings.
        excess: the loss beyond the trained length, compared with truncation.
        noticed_at: the first position at which the loss is certainly above that of truncation.
        cause: why.
    """
    at = None
    if excess and noticed_at is not None:
        at = breaks_at(noticed_at, excess[0].start)
        state, sentence = "breaks", words.broken(excess, at, cause)
    elif not excess and (risen := rise(scan.measures)) is not None:
        at, state, sentence = risen[0], "breaks", words.risen(scan, *risen)
    elif words.troubled(scan):
        state, sentence = "faulty", words.faulty(scan)
    else:
        state, sentence = "healthy", words.healthy(scan)
    return Verdict(
        state=state,  # type: ignore[arg-type]
        sentence=sentence,
        breaks_at=at,
        noticed_at=noticed_at,
        excess=excess,
        cause=cause,
    )


def advise(scan: Scan) -> list[Advice]:
    """The remedies that help, the best first; none if nothing was tried or nothing helps."""
    return [
        _offer(remedy) for remedy in scan.remedies if remedy.change.helps and _holds(scan, remedy)
    ]


def _holds(scan: Scan, remedy: Remedy) -> bool:
    """False for a plan that does not help on texts which made no part of it."""
    judged = None if scan.plan is None else scan.plan.judged
    return remedy.name != PLAN or judged is None or judged.change.helps


def _offer(remedy: Remedy) -> Advice:
    text = (
        f"{remedy.name[0].upper()}{remedy.name[1:]}: the loss past the trained length goes "
        f"{remedy.change} at {remedy.length:,} tokens; perplexity of all tokens "
        f"{remedy.perplexity_before:.3g} → {remedy.perplexity_after:.3g}."
    )
    return Advice(text=text, call=remedy.call)
