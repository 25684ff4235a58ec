"""What was measured, as files to read: figures, and reports that are one HTML file each."""

from attentropy.report.page import render
from attentropy.report.payload import scan_payload
from attentropy.report.run import headline, run_payload
from attentropy.scans.judging import words
from attentropy.scans.schema import Scan
from attentropy.training.runstore import StoredRun


def scan_page(scan: Scan, other: Scan | None = None, *, live: str = "") -> str:
    """The report of a scan, as the text of one HTML file.

    Args:
        scan: what was measured.
        other: another scan to compare it with.
        live: the address that says when the scan last changed, on a page that is served.
    """
    summary = [words.headline(scan), *words.sentences(scan)]
    title = f"{scan.model.name} · attention scan"
    return render(scan_payload(scan, other), title=title, summary=summary, live=live)


def run_page(run: StoredRun, *, live: str = "") -> str:
    """The report of a training run, as the text of one HTML file.

    Args:
        run: what was recorded.
        live: the address that gives its fresh payload, on a page that is served.
    """
    title = f"{run.name} · training run"
    return render(run_payload(run), title=title, summary=[headline(run)], live=live)
