"""The house as a reader expects it: a test beside the name of every module, small folders and files,
and one meaning for every class name.
"""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

import attentropy
from tests.conftest import WHOLE

SOURCE = Path(attentropy.__file__).parent
TESTS = Path(__file__).parent
ROOMS = sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists())
ELSEWHERE = {
    "faults": "kills, full disks and damaged files, tried on whole programs",
    "docs": "pages, examples and docstrings are tested as a reader would try them",
    "test_layout.py": "the tree itself",
    "test_release.py": "the archives that are built of the whole repository",
    "test_typing.py": "the public names as a type checker sees them",
}
MOST_MODULES, MOST_LINES = 12, 500
SAME_NAME = {
    "AttentionCallback": "one for each trainer, which users import from one of the two only",
}


@cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def modules(folder=SOURCE):
    """Modules with code of their own: a function or a class."""
    for path in sorted(folder.rglob("*.py")):
        named = not path.name.startswith("__")
        if named and any(isinstance(n, ast.FunctionDef | ast.ClassDef) for n in parsed(path).body):
            yield path


def test_of(module):
    """The test that a module should have: leading underscores are dropped."""
    own = module.relative_to(SOURCE)
    return TESTS / own.parent / f"test_{own.name.lstrip('_')}"


test_of.__test__ = False


def untested(room):
    """Modules of a room without a test of their name."""
    lacking = [m.relative_to(SOURCE) for m in modules(SOURCE / room) if not test_of(m).exists()]
    return [str(path) for path in lacking]


def homeless(room):
    """Tests of a room that belong to no module and no package of it."""
    lost = []
    for path in sorted((TESTS / room).rglob("test_*.py")):
        package = path.parent.relative_to(TESTS)
        names = {p.stem.lstrip("_") for p in (SOURCE / package).glob("*.py")} | {package.name}
        about = path.stem.removeprefix("test_")
        if not any(about == name or about.startswith(f"{name}_") for name in names):
            lost.append(path.relative_to(TESTS))
    return [str(path) for path in lost]


@pytest.mark.parametrize("room", ROOMS)
def test_every_module_has_a_test_of_its_name(room):
    assert untested(room) == []


@pytest.mark.parametrize("room", ROOMS)
def test_every_test_belongs_to_a_module_or_to_a_package(room):
    assert homeless(room) == []


def test_what_stands_beside_the_rooms_has_a_reason():
    package = {"test_attentropy.py"}  # of what attentropy/__init__.py does
    beside = {p.name for p in TESTS.iterdir() if p.is_dir() and list(p.rglob("test_*.py"))}
    beside |= {p.name for p in TESTS.glob("test_*.py")}
    assert beside - set(ROOMS) - package == set(ELSEWHERE)


def test_folders_are_small():
    counts = {}
    for path in modules():
        counts[path.parent] = counts.get(path.parent, 0) + 1
    large = {str(f.relative_to(SOURCE)): n for f, n in counts.items() if n > MOST_MODULES}
    assert large == {}


def test_files_are_short():
    lengths = {path: len(path.read_text().splitlines()) for path in modules()}
    assert {str(p.relative_to(SOURCE)): n for p, n in lengths.items() if n > MOST_LINES} == {}


@cache
def classes():
    """Where each class name is defined, private ones by their public spelling."""
    found = defaultdict(list)
    for path in modules():
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(str(path.relative_to(SOURCE)))
    return found


def test_a_class_name_has_one_meaning():
    twice = {name: homes for name, homes in classes().items() if len(homes) > 1}
    assert {name: homes for name, homes in twice.items() if name not in SAME_NAME} == {}
    assert set(SAME_NAME) <= set(twice), "take these names off the list"


def test_the_tree_is_read():
    assert {"core", "theory", "cli"} <= set(ROOMS)
    assert len(list(modules())) > 200
    assert test_of(SOURCE / "theory" / "_arrays.py") == TESTS / "theory" / "test_arrays.py"


def test_what_the_quick_suite_leaves_out_exists(request):
    names = [item.nodeid for item in request.session.items]
    if len({name.split("::")[0] for name in names}) < 300:
        pytest.skip("only a part of the suite is collected")
    assert [word for word in WHOLE if not any(word in name for name in names)] == []
