"""The documentation builds without a warning, names every example, and lists every page."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
needs_mkdocs = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("material", "mkdocstrings_handlers")),
    reason="mkdocs is not installed (the extra attentropy[docs])",
)


@needs_mkdocs
def test_builds_without_warnings(tmp_path):
    # not --quiet: it would keep --strict from seeing the warnings
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)],
        check=False,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "attentropy doctor" in (tmp_path / "reference" / "cli" / "index.html").read_text()
    mathematics = (tmp_path / "explanation" / "mathematics" / "index.html").read_text()
    assert "</math>:</span> such attention" in mathematics, "formulas stay in their paragraph"
    chinese = (tmp_path / "zh" / "tutorial" / "index.html").read_text()
    assert "确认调整确实有效。全程无需下载" in chinese, "lines of Chinese join without a space"


def test_every_page_is_in_the_navigation():
    listed = (ROOT / "mkdocs.yml").read_text()
    pages = [page.relative_to(DOCS) for page in DOCS.rglob("*.md")]
    pages = [page for page in pages if page.parts[0] != "results"]  # runs of the lab
    assert [str(page) for page in pages if f": {page}\n" not in listed] == []


def test_every_example_is_described():
    text = (DOCS / "examples.md").read_text()
    scripts = [path.name for path in (ROOT / "examples").glob("*.py")]
    assert [name for name in scripts if f"`{name}`" not in text] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_of_the_repository_lead_somewhere(page):
    links = LINK.findall((ROOT / page).read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []
