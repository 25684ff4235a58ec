"""What was measured, as files to read: figures, and reports that are one HTML file each."""

from attentropy.report.page import render
from attentropy.report.payload import scan_payload
from attentropy.report.run import Run, headline, run_payload
from attentropy.scans.judging import words
from attentropy.scans.schema import Scan


def scan_page(scan: Scan, other: Scan | None = None, *, live: str = "") -> str:
    """The report of a scan; with `other`, compared with that scan.

    `live` is the address that says when the scan last changed, on a page that is served.
    """
    summary = [words.headline(scan), *words.sentences(scan)]
    title = f"{scan.model.name} · attention scan"
    return render(scan_payload(scan, other), title=title, summary=summary, live=live)


def run_page(run: Run, *, live: str = "") -> str:
    """The report of a training run; `live` is the address that gives its fresh payload."""
    title = f"{run.name} · training run"
    return render(run_payload(run), title=title, summary=[headline(run)], live=live)
