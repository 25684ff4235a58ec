"""Triton's interpreter without the work that it repeats."""

from dataclasses import replace
from types import SimpleNamespace

import triton.language as tl
from triton.runtime import interpreter


def make_quick(monkeypatch):
    """Patch the language once a kernel, and check no index for overflow.

    The interpreter patches triton.language at every call of a function, and does every sum and
    product of indices a second time in 64 bits, which no compiled kernel does.
    """
    patch = getattr(interpreter, "_patch_lang", None)
    if patch is not None:
        monkeypatch.setattr(interpreter, "_patch_lang", _once(patch))
    builder = getattr(interpreter, "interpreter_builder", None)
    if hasattr(getattr(builder, "options", None), "sanitize_overflow"):
        unchecked = replace(builder.options, sanitize_overflow=False)
        monkeypatch.setattr(builder, "options", unchecked)


def _once(patch):
    done = set()

    def once(fn):
        languages = frozenset(id(x) for x in fn.__globals__.values() if x is tl or x is tl.core)
        if languages in done:
            return SimpleNamespace(restore=lambda: None)
        outermost = not done
        done.add(languages)
        scope = patch(fn)
        if not outermost:
            return scope
        return SimpleNamespace(restore=lambda: (scope.restore(), done.clear()))

    return once
