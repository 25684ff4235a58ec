"""Docstrings say what every argument of a public function is, in the order of the signature."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import attentropy as at

SOURCE = Path(at.__file__).parent
# kernels are internal, and take tiles by the dozen: their contract is in kernels/contract.py
DOCUMENTED = (
    "core",
    "distributed",
    "attention",
    "nn",
    "analysis",
    "theory",
    "lab",
    "cli",
)
ELSEWHERE = ("cli/models", "cli/training")
ENTRY = re.compile(r"^    (\*{0,2}\w+(?:, \w+)*): ", re.MULTILINE)


def functions(body, prefix=""):
    """Public functions and methods with their names; properties have no arguments."""
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from functions(node.body, f"{node.name}.")
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield f"{prefix}{node.name}", node


def parameters(node):
    """Names of the parameters, self and cls apart."""
    given = node.args
    named = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]
    return [one.arg for one in named if one is not None and one.arg not in ("self", "cls")]


def documented(node):
    """Names in the Args section of a docstring."""
    text = (ast.get_docstring(node) or "").partition("Args:\n")[2]
    section = re.split(r"^(?=\S)", text, maxsplit=1, flags=re.MULTILINE)[0]
    return [name.lstrip("*") for entry in ENTRY.findall(section) for name in entry.split(", ")]


def is_command(node):
    """The help of a command comes from its options."""
    return any("click" in ast.unparse(one) for one in node.decorator_list)


def lacking(room):
    """Public functions of a room whose Args are not those of the signature."""
    for path in sorted((SOURCE / room).rglob("*.py")):
        own = path.relative_to(SOURCE)
        private = any(part.startswith("_") and part != "__init__.py" for part in own.parts)
        if private or (room == "cli" and any(own.is_relative_to(other) for other in ELSEWHERE)):
            continue
        for name, node in functions(ast.parse(path.read_text(encoding="utf-8")).body):
            if not is_command(node) and parameters(node) != documented(node):
                yield f"{own}: {name}({', '.join(parameters(node))})"


@pytest.mark.parametrize("room", DOCUMENTED)
def test_every_argument_is_documented(room):
    assert list(lacking(room)) == []


@pytest.mark.parametrize("room", ELSEWHERE)
def test_a_room_is_left_out_only_while_it_must_be(room):
    assert list(lacking(room)), f"take {room} off the list ELSEWHERE"


def public():
    """Public functions by the name that a user writes."""
    for prefix, module in (("at", at), ("at.nn", at.nn), ("at.analysis", at.analysis)):
        for name in getattr(module, "__all__", vars(module)):
            value = getattr(module, name)
            if not name.startswith("_") and inspect.isfunction(value):
                yield f"{prefix}.{name}", value


def test_every_public_name_documents_its_arguments():
    found = set()
    for name, value in public():
        (node,) = ast.parse(inspect.getsource(value)).body
        if parameters(node) != documented(node):
            found.add(name)
    assert found == set()


def test_the_section_is_read():
    (node,) = ast.parse(
        'def f(a, *b, c=1, **d):\n    """Do.\n\n    Args:\n        a: one\n            more: no.\n'
        '        b: two.\n        c, d: three.\n\n    Returns:\n        e: no.\n    """\n'
    ).body
    assert parameters(node) == documented(node) == ["a", "b", "c", "d"]
