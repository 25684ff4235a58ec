"""Two trees of pages: the same pages, headings and code; and one site that joins them."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.language.reading import LATIN

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def module(name):
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


LANGUAGES = module("languages")
ENGLISH = sorted(
    page.relative_to(DOCS).as_posix()
    for page in DOCS.rglob("*.md")
    if not page.relative_to(DOCS).as_posix().startswith(("zh/", "results/"))
)
CHINESE = sorted(p.relative_to(DOCS / "zh").as_posix() for p in (DOCS / "zh").rglob("*.md"))
WHOLE = [name for name in CHINESE if not LANGUAGES.is_written(DOCS / "zh" / name)]


def headings(text):
    """Levels of the headings, in order; code holds none."""
    return [len(mark) for mark in re.findall(r"^(#+) ", FENCE.sub("", text), re.MULTILINE)]


def code(text):
    return FENCE.findall(text)


def both(name):
    return ((DOCS / where / name).read_text(encoding="utf-8") for where in ("", "zh"))


def test_no_chinese_page_is_left_over():
    assert set(CHINESE) <= set(ENGLISH)
    assert len(CHINESE) > 40


@pytest.mark.slow  # so that a change of an English page can land before its translation does
def test_no_translation_is_missing_or_behind():
    assert LANGUAGES.stale() == {}


def test_pages_that_are_abridged_say_where_the_whole_is():
    short = [name for name in CHINESE if "abridged: true" in (DOCS / "zh" / name).read_text()[:30]]
    for name in short:
        up = "../" * (1 + name.count("/"))
        assert f"]({up}{name}" in (DOCS / "zh" / name).read_text(encoding="utf-8"), name
    assert set(short) <= {
        "gpu.md", "models.md"
    }  # fmt: skip


def is_current(name):
    return name not in LANGUAGES.stale()


@pytest.mark.parametrize("name", [n for n in WHOLE if not n.startswith("reference/")])
def test_a_current_translation_has_the_headings_and_the_code(name):
    """What changed in English since is named by `python docs/languages.py`."""
    english, chinese = both(name)
    if not is_current(name):
        pytest.skip("the English page has changed since")
    assert headings(chinese) == headings(english)
    assert code(chinese) == code(english)


@pytest.mark.parametrize("name", WHOLE)
def test_prose_is_chinese(name):
    """Most of a page is Chinese once code, links, formulas and names are left out."""
    text = (DOCS / "zh" / name).read_text(encoding="utf-8")
    text = FENCE.sub("", text)
    text = re.sub(
        r"`[^`]*`|\$[^$]*\$|\]\([^)]*\)|^    .*$|<[^>]*>|^---.*?---$", "", text, flags=re.M | re.S
    )
    words = [w for w in re.findall(r"[A-Za-z]{3,}", text) if w not in LATIN]
    signs = re.findall(r"[\u4e00-\u9fff]", text)
    assert len(words) < 0.2 * len(signs), sorted(set(words))


@pytest.mark.parametrize("name", CHINESE)
def test_terms_are_those_of_the_glossary(name):
    text = FENCE.sub("", (DOCS / "zh" / name).read_text(encoding="utf-8"))
    assert "空行" not in text
    assert "打分" not in text
    for line in text.split("\n\n"):
        if "HoldEntropy" in line and name in ("embedded.md", "explanation/why-log-n.md"):
            break
    else:
        return
    assert "首项近似" in text


def test_stale_translations_are_named(tmp_path, monkeypatch):
    for where in ("", "zh"):
        (tmp_path / where).mkdir(exist_ok=True)
    english, chinese = tmp_path / "a.md", tmp_path / "zh" / "a.md"
    english.write_text("# A\n")
    (tmp_path / "b.md").write_text("# B\n")
    chinese.write_text("# 甲\n", encoding="utf-8")
    monkeypatch.setattr(LANGUAGES, "DOCS", tmp_path)
    assert LANGUAGES.stale() == {
        "a.md": "the English page has changed",
        "b.md": "there is no Chinese page",
    }
    LANGUAGES.mark(["a.md"])
    assert list(LANGUAGES.stale()) == ["b.md"]
    english.write_text("# A\n\nMore.\n")
    assert list(LANGUAGES.stale()) == ["a.md", "b.md"]
    LANGUAGES.mark(["a.md"])
    assert chinese.read_text(encoding="utf-8").count("translated-from") == 1


@pytest.mark.parametrize(
    ("script", "english"),
    [("glossary_page", "glossary"), ("statistics_page", "reference/statistics")],
)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_written_pages_are_up_to_date(script, english, language):
    command = [sys.executable, str(DOCS / f"{script}.py"), language]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    where = DOCS / ("zh" if language == "zh" else "") / f"{english}.md"
    assert where.read_text(encoding="utf-8") == done.stdout


def test_the_navigation_is_that_of_the_english_pages():
    yaml = pytest.importorskip("yaml")
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = yaml.safe_load(text)["nav"]

    def walk(items):
        for item in items:
            ((title, inside),) = item.items()
            yield title
            if isinstance(inside, list):
                yield from walk(inside)

    assert len(set(walk(nav)) & set(LANGUAGES.TITLES)) > 45
    made = LANGUAGES._chinese([{"Reference": [{"The scan": "scan.md"}, {"New": "new.md"}]}])
    assert made == [{"参考": [{"扫描": "zh/scan.md"}]}]
