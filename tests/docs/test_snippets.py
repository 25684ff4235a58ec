"""Snippets of the README and of the documentation run, and print what the page says they print."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```python\n(.*?)```\s*(?:```\n(.*?)```)?", re.DOTALL)
PAGES = {  # code of translations is the same, which tests/docs/test_languages.py compares
    str(page.relative_to(ROOT)): BLOCK.findall(page.read_text())
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if not page.is_relative_to(ROOT / "docs" / "zh")
}


@pytest.mark.parametrize("page", [name for name, snippets in PAGES.items() if snippets])
def test_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "snippet"}
    for code, output in PAGES[page]:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), names)
        assert printed.getvalue() == output
    for change in getattr(names.get("monitor"), "changes", ()):
        change.undo()  # what an alarm changed stays changed, in other tests too


def test_there_are_snippets():
    assert PAGES["README.md"]
