"""Files and modules that the pages name are there, and a call takes the walk that is described."""

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

import attentropy as at
from attentropy.attention import plans

ROOT = Path(__file__).parents[2]
PACKAGE = Path(at.__file__).parent
PAGES = {
    str(page.relative_to(ROOT)): page.read_text(encoding="utf-8")
    for page in (
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile", "mkdocs.yml")),
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").glob("*.py")),
        *sorted((ROOT / "benchmarks").glob("*.py")),
    )
    if "results" not in page.relative_to(ROOT).parts
}
PATH = re.compile(
    r"`((?:[\w.-]+/)*[\w.-]+(?:\.py|\.cpp|/))`|(?<![\w./])((?:src|tests|docs)/[\w./-]*\w)"
)
MODULE = re.compile(r"\battentropy(?:\.\w+)+")
MADE = {"dist/", "steered.py"}  # by commands and by the reader


def paths(text):
    """Source files and folders that a page names."""
    return {"".join(found) for found in PATH.findall(text)} - MADE


def is_there(path, page):
    homes = (ROOT, PACKAGE, ROOT / "docs", ROOT / "examples", (ROOT / page).parent)
    anywhere = "/" not in path and any(PACKAGE.rglob(path))
    return anywhere or any((home / path).exists() for home in homes)


def is_module_or_member(name):
    """Can a dotted name be imported, or read off a module?"""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


@pytest.mark.parametrize("page", PAGES)
def test_every_path_leads_somewhere(page):
    assert sorted(path for path in paths(PAGES[page]) if not is_there(path, page)) == []


def test_stale_paths_would_be_found():
    text = "see `observe/diagnose.py`, `kernels/`, tests/test_docs.py and `my-run/`"
    named = paths(text)
    assert named == {"observe/diagnose.py", "kernels/", "tests/test_docs.py", "my-run/"}
    assert [path for path in sorted(named) if is_there(path, "README.md")] == ["kernels/"]
    assert not is_module_or_member("attentropy.observe.watch")
    assert is_module_or_member("attentropy.models.watch.Watch.heads")


@pytest.mark.parametrize("page", PAGES)
def test_every_module_is_there(page):
    names = set(MODULE.findall(PAGES[page])) - {"attentropy.readthedocs.io"}
    assert sorted(name for name in names if not is_module_or_member(name)) == []


def test_the_tree_names_every_room():
    tree = PAGES["docs/contributing/architecture.md"].split("```")[1]
    packages = [p.parent for p in PACKAGE.rglob("__init__.py") if p.parent != PACKAGE]
    assert [p.name for p in packages if f"{p.name}/" not in tree and p.name != "documents"] == []


def passed_through(call):
    """Files of the package in the order in which a call enters them."""
    order = []

    def note(frame, *_):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            name = str(path.relative_to(PACKAGE))
            order.extend([name] if name not in order else [])

    call()  # what is imported or built once is no part of the walk
    plans._PLANS.clear()  # a call of a new kind; others take the short way of its plan
    sys.settrace(note)
    try:
        call()
    finally:
        sys.settrace(None)
    return order


@pytest.mark.skipif(at.doctor().kernel != "fused", reason="the walk is that of the fused kernel")
def test_the_walk_of_a_call_is_the_one_described():
    text = PAGES["docs/contributing/architecture.md"]
    section = text.partition("## The walk of a call")[2].partition("###")[0]
    described = re.findall(r"^\d+\. `([\w./]+)`", section, re.MULTILINE)
    q = torch.randn(1, 1, 8, 16)
    taken = passed_through(lambda: at.attend(q, q, q, mask=at.causal))
    assert len(described) > 5
    assert [path for path in taken if path in described] == described
