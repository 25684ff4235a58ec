"""A mutation for every check of a claim: one change of what it rests on, after which it must fail.

    python -m tests.lab.claims.mutations        # looks for one for every claim, writes mutations.json

Kinds of change, in the order in which they are tried:

    off NAME            a function that the check calls gives 1.05 times its result
    number LINE:COLUMN  a number in the check, or in a helper beside it, is 1.05 times as large
    swap LINE:COLUMN    + and -, or * and /, are exchanged
    drop LINE:COLUMN    a minus sign is left out
    flat NAME           a function, also one of numpy, gives the mean of its result everywhere
    minus NAME          a function, also one of numpy, gives its result with the other sign

Lines and columns count from the function that is changed, whose name stands before them ("check" is
the check itself). Comparisons and their bounds are never changed, nor what is only shown: a check
that fails because its bound moved would prove nothing.
"""

import ast
import importlib
import inspect
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from attentropy.lab.claims import CLAIMS

PATH = Path(__file__).parent / "mutations.json"
SHARE = 1.05
_SWAPS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
VERDICTS = {"holds_if": 1, "conditional": 2, "approximate": 1, "refuted": 2}


class Source:
    """The module of a claim, as a tree that can be changed and run again."""

    def __init__(self, id_):
        measure = inspect.unwrap(CLAIMS[id_].measure)
        self.module = sys.modules[measure.__module__]
        self.line = measure.__code__.co_firstlineno
        self.text = inspect.getsource(self.module)

    def functions(self):
        """Defs of the module by name; the check itself is "check", and other checks are left out."""
        tree = ast.parse(self.text)
        found, kept = {}, []
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == "_":
                if node.decorator_list[0].lineno != self.line:
                    continue
                node.name, node.decorator_list = "check", []
            if isinstance(node, ast.FunctionDef):
                found[node.name] = node
            kept.append(node)
        tree.body = kept
        return tree, found

    def run(self, tree, **instead):
        """The verdict of the changed check; "raised" if it raises."""
        room = types.ModuleType("mutated")
        room.__dict__.update(__name__=self.module.__name__)
        ast.fix_missing_locations(tree)
        exec(compile(tree, self.module.__file__, "exec"), room.__dict__)
        room.__dict__.update(instead)
        with np.errstate(all="ignore"):
            try:
                return room.check().verdict
            except Exception as error:
                return f"raised {type(error).__name__}"


def verdict(id_, mutation):
    """What the check of a claim says under a mutation."""
    source = Source(id_)
    tree, functions = source.functions()
    kind, place = mutation.split(" ", 1)
    if kind in CHANGES:
        return source.run(tree, **_instead(source.module, place, CHANGES[kind]))
    name, position = place.rsplit(" ", 1)
    target = dict(_places(functions[name]))[kind, position]
    _change(kind, target)
    return source.run(tree)


def candidates(id_) -> Iterator[str]:
    """Mutations of a check, the plainest first."""
    source = Source(id_)
    _, functions = source.functions()
    used = _used(functions)
    yield from (f"off {name}" for name in _called(functions, used, source.module))
    for wanted in ("number", "swap", "drop"):
        for name in used:
            for (kind, position), _node in _places(functions[name]):
                if kind == wanted:
                    yield f"{kind} {name} {position}"
    for kind in ("flat", "minus"):
        yield from (
            f"{kind} {name}" for name in _called(functions, used, source.module, numpy=True)
        )


def caught(id_, mutation) -> bool:
    """Whether the check notices: another verdict, and no error that hides it."""
    found = verdict(id_, mutation)
    return found != CLAIMS[id_].expected and not found.startswith("raised")


def _used(functions):
    """The check and the helpers that it reaches."""
    seen, queue = [], ["check"]
    while queue:
        name = queue.pop(0)
        if name in seen:
            continue
        seen.append(name)
        names = {n.id for n in ast.walk(functions[name]) if isinstance(n, ast.Name)}
        queue += [other for other in functions if other in names]
    return seen


def _called(functions, used, module, *, numpy=False):
    """Functions of this library, or of numpy too, that are called, as `name` or `module.name`."""
    found = []
    for name in used:
        for node in ast.walk(functions[name]):
            if not isinstance(node, ast.Call):
                continue
            target = ast.unparse(node.func)
            if target.split(".")[0] in VERDICTS or target in found or target.count(".") > 1:
                continue
            head = getattr(module, target.split(".")[0], None)
            ours = getattr(head, "__module__", getattr(head, "__name__", "")) or ""
            ours = ours.startswith(("attentropy", "numpy") if numpy else "attentropy")
            if ours and target not in functions:
                found.append(target)
    return found


def _instead(module, place, change):
    """The globals that make a function give a changed result."""
    head, _, tail = place.partition(".")
    if not tail:
        return {head: _changed(getattr(module, head), change)}
    room = types.SimpleNamespace(**vars(getattr(module, head)))
    setattr(room, tail, _changed(getattr(room, tail), change))
    return {head: room}


def _changed(right, change):
    def wrong(*given, **options):
        found = right(*given, **options)
        if isinstance(found, types.GeneratorType):
            return (change(one) for one in found)
        if isinstance(found, tuple) and not hasattr(found, "_fields"):
            return tuple(change(one) for one in found)
        return change(found)

    return wrong


CHANGES = {
    "off": lambda found: SHARE * found,
    "flat": lambda found: (
        np.full(np.shape(found), np.mean(found)) if np.shape(found) else 0 * found
    ),
    "minus": lambda found: -found,
}


def _places(function):
    """What can be changed in a function, as ((kind, line:column), node)."""
    spared = set(_spared(function))
    for node in ast.walk(function):
        if node in spared or not hasattr(node, "lineno"):
            continue
        where = f"{node.lineno - function.lineno}:{node.col_offset}"
        if isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value:
            yield ("number", where), node
        elif isinstance(node, ast.BinOp) and type(node.op) in _SWAPS:
            yield ("swap", where), node
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            yield ("drop", where), node


def _spared(function):
    """Nodes that stay: bounds of comparisons, tolerances, sizes, seeds, and numbers that are shown."""
    for node in ast.walk(function):
        held = []
        if isinstance(node, ast.Compare):
            held = [
                x
                for x in (node.left, *node.comparators)
                if not any(isinstance(y, ast.Name | ast.Call) for y in ast.walk(x))
            ]
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in VERDICTS:
                held = [k.value for k in node.keywords if k.arg != "sharper"]
                held += node.args[1:] if name == "approximate" else []
            elif name == "close":
                held = [*node.args[2:], *(k.value for k in node.keywords)]
            elif name in ("generator", "normals"):
                held = [*node.args, *(k.value for k in node.keywords)]
            held += [k.value for k in node.keywords if k.arg in ("size", "axis", "seed")]
        elif isinstance(node, ast.Subscript):
            held = [node.slice]
        elif isinstance(node, ast.arguments | ast.AnnAssign):
            held = []
        for one in held:
            yield from ast.walk(one)


def _change(kind, node):
    if kind == "number":
        node.value = SHARE * node.value
    elif kind == "swap":
        node.op = _SWAPS[type(node.op)]()
    else:
        node.op = ast.UAdd()


def search(id_, limit=120):
    """The first mutation that the check notices; None if there is none among the first ones."""
    for mutation, _ in zip(candidates(id_), range(limit)):
        if caught(id_, mutation):
            return mutation
    return None


def main() -> None:
    """Keep the mutations that still work, look for the others, and write the file."""
    known = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    found = {}
    for id_ in CLAIMS:
        old = known.get(id_)
        still = old in set(candidates(id_)) if old else False
        found[id_] = old if still and caught(id_, old) else search(id_)
        if found[id_] is None:
            print(f"{id_}: no mutation makes it fail", flush=True)
    text = json.dumps({k: v for k, v in found.items() if v}, ensure_ascii=False, indent=1)
    PATH.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    importlib.import_module("attentropy.lab.claims")
    main()
