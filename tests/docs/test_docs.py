"""The documentation builds without a warning, names every example, and lists every page."""

import importlib.util
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import attentropy as at

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
needs_mkdocs = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("material", "mkdocstrings_handlers")),
    reason="mkdocs is not installed (the extra attentropy[docs])",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    # not --quiet: it would keep --strict from seeing the warnings
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder)],
        check=False,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


@needs_mkdocs
def test_builds_without_warnings(site):
    assert "attentropy doctor" in (site / "reference" / "cli" / "index.html").read_text()
    mathematics = (site / "explanation" / "mathematics" / "index.html").read_text()
    assert "</math>:</span> such attention" in mathematics, "formulas stay in their paragraph"
    chinese = (site / "zh" / "tutorial" / "index.html").read_text()
    assert "确认调整确实有效。全程无需下载" in chinese, "lines of Chinese join without a space"


@needs_mkdocs
def test_a_page_leads_to_itself_in_the_other_language(site):
    english = (site / "howto" / "lightning" / "index.html").read_text()
    chinese = (site / "zh" / "howto" / "lightning" / "index.html").read_text()
    assert '<html lang="en"' in english
    assert '<html lang="zh"' in chinese
    assert 'href="../../zh/howto/lightning/" hreflang="zh"' in english
    assert 'href="../../../howto/lightning/" hreflang="en"' in chinese
    assert "观测普通训练循环" in chinese
    assert "观测普通训练循环" not in english, "each language has its own navigation"
    assert "用法：attentropy scan" in (site / "zh" / "reference" / "cli" / "index.html").read_text()


@needs_mkdocs
def test_the_reference_has_every_public_name(site):
    pages = [page.read_text() for page in (site / "reference").rglob("index.html")]
    anchors = {name for page in pages for name in re.findall(r'id="attentropy\.([\w.]+)"', page)}
    documented = {name.rsplit(".", 1)[-1] for name in anchors}
    public = {*at.__all__, *vars(at.nn)} - {"__version__", *vars(types.ModuleType)}
    names = {
        name for name in public if not isinstance(getattr(at.nn, name, None), types.ModuleType)
    }
    assert sorted(name for name in names - documented if not name.startswith("__")) == []
    assert not [page for page in pages if "<blockquote>" in page], "examples are code"


def test_every_page_is_in_the_navigation():
    listed = (ROOT / "mkdocs.yml").read_text()
    pages = [page.relative_to(DOCS) for page in DOCS.rglob("*.md")]
    # runs of the lab; and translations, whose navigation docs/languages.py makes of the English one
    pages = [page for page in pages if page.parts[0] not in ("results", "zh")]
    assert [str(page) for page in pages if f": {page}\n" not in listed] == []


def test_every_example_is_described():
    text = (DOCS / "examples.md").read_text()
    scripts = [path.name for path in (ROOT / "examples").glob("*.py")]
    assert [name for name in scripts if f"`{name}`" not in text] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_of_the_repository_lead_somewhere(page):
    links = LINK.findall((ROOT / page).read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []
