import contextlib
from types import SimpleNamespace

import pytest

with contextlib.suppress(ImportError):
    import triton.language as tl
    from triton.runtime import interpreter

collect_ignore_glob = [] if "tl" in globals() else ["test_*.py"]


@pytest.fixture(autouse=True)
def quick_interpreter(monkeypatch):
    """The interpreter patches triton.language at every call of a function; once a kernel will do."""
    patch = getattr(interpreter, "_patch_lang", None)
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

    if patch is not None:
        monkeypatch.setattr(interpreter, "_patch_lang", once)
