"""Write a page for every finding and alarm from their explanations.

python docs/findings_pages.py docs/findings
python docs/findings_pages.py docs/zh/findings zh
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

INDEX = """# Findings

<!-- written by docs/findings_pages.py from attentropy/report/findings/texts.py -->

A page for each finding of `at.diagnose` and of a scan, and for each alarm of a monitor.
The report has the same words under *What this means*. All numbers are in
[one table](../thresholds.md).

"""


CHINESE_INDEX = """# 诊断结果

<!-- written by docs/findings_pages.py from attentropy/report/findings/texts.py -->

`at.diagnose` 和扫描的每种诊断结果，以及监测器的每种警报，各有一页。
报告里的“这是什么意思”用的是同样的文字。
所有的数字都在[一张表](../thresholds.md)里。

"""
TITLES = ("How it is measured", "Threshold, and why", "When it is harmless", "What to do")


def chinese_pages() -> dict[str, str]:
    """The text of each file of docs/zh/findings, by its name."""
    from attentropy.core.language.speaking import speaking, told
    from attentropy.report.findings.texts import EXPLAINED

    with speaking("zh"):
        shown = EXPLAINED.values()
        lines = [f"- [{told(one.name)}]({one.slug}.md)：{told(one.meaning)}\n" for one in shown]
        found = {f"{one.slug}.md": _chinese(one, told) for one in shown}
    return {"index.md": CHINESE_INDEX + "".join(lines), **found}


def _chinese(one: Any, told: Callable[[str], str]) -> str:
    words = (one.measured, one.threshold, one.harmless, one.remedy)
    text = "<!-- written by docs/findings_pages.py -->\n\n"
    text += f"# {told(one.name)}（{one.name}）\n\n{told(one.meaning)}\n\n"
    text += "| 健康 | 有此诊断 |\n|---|---|\n"
    text += f"| {one.healthy.svg} | {one.ill.svg} |\n"
    text += f"| {told(one.healthy.caption)} | {told(one.ill.caption)} |\n"
    parts = zip(TITLES, words, strict=True)
    return text + "".join(f"\n## {told(title)}\n\n{told(said)}\n" for title, said in parts)


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
    for name, text in (chinese_pages() if sys.argv[2:] == ["zh"] else pages()).items():
        (folder / name).write_text(text, encoding="utf-8")
