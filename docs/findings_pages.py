"""Write a page for every finding and alarm from their explanations.

python docs/findings_pages.py docs/findings
"""

import sys
from pathlib import Path
from typing import Any

INDEX = """# Findings

<!-- written by docs/findings_pages.py from attentropy/report/findings/texts.py -->

A page for each finding of `at.diagnose` and of a scan, and for each alarm of a monitor.
The report has the same words under *What this means*. All numbers are in
[one table](../thresholds.md).

"""


def pages() -> dict[str, str]:
    """The text of each file of docs/findings, by its name."""
    from attentropy.report.findings.texts import EXPLAINED

    found = {f"{one.slug}.md": _page(one) for one in EXPLAINED.values()}
    lines = [f"- [{one.name}]({one.slug}.md): {one.meaning}\n" for one in EXPLAINED.values()]
    return {"index.md": INDEX + "".join(lines), **found}


def _page(one: Any) -> str:
    parts = {
        "How it is measured": one.measured,
        "Threshold, and why": one.threshold,
        "When it is harmless": one.harmless,
        "What to do": one.remedy,
    }
    text = f"# {one.name.capitalize()}\n\n{one.meaning}\n\n"
    text += "| healthy | with this finding |\n|---|---|\n"
    text += f"| {one.healthy.svg} | {one.ill.svg} |\n"
    text += f"| {one.healthy.caption} | {one.ill.caption} |\n"
    return text + "".join(f"\n## {title}\n\n{words}\n" for title, words in parts.items())


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
