"""Snippets of the README run, and print what the README says they print."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```python\n(.*?)```\s*(?:```\n(.*?)```)?", re.DOTALL)
SNIPPETS = BLOCK.findall((ROOT / "README.md").read_text())


@pytest.mark.parametrize(("code", "output"), SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippet(code, output, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert printed.getvalue() == output


def test_there_are_snippets():
    assert SNIPPETS
