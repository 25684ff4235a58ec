import importlib
import subprocess
import sys
import threading
import time

import pytest

import attentropy as at

HEAVY = ("transformers", "scipy", "matplotlib", "triton", "lightning", "pandas")


def imported(code):
    """Modules that a fresh interpreter holds after running `code`."""
    code += "\nimport sys; print('\\n'.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_the_package_is_light():
    held = imported("import attentropy")
    assert not held & {*HEAVY, "torch"}


def test_attention_is_light():
    held = imported(
        "import torch, attentropy as at\nq = torch.ones(1, 1, 4, 8)\nat.attend(q, q, q, mask=at.causal)"
    )
    assert not held & set(HEAVY)
    assert "torch" in held


def test_the_probe_sees_what_is_imported():
    assert "scipy" in imported("import scipy")


def test_every_public_name_exists():
    for name in at.__all__:
        assert getattr(at, name) is not None
    assert set(at.__all__) <= set(dir(at))


@pytest.mark.parametrize("name", ["core.masks", "core.scales", "core.errors", "nn", "theory"])
def test_modules_are_reached_from_the_package(name):
    last = name.rpartition(".")[2]
    code = f"import attentropy as at; assert at.{last}.__name__ == 'attentropy.{name}'"
    assert f"attentropy.{name}" in imported(code)


def test_errors_can_be_caught_by_name():
    with pytest.raises(at.ArgumentError, match="Temperature: tau must be > 0, got 0"):
        at.Temperature(0)
    with pytest.raises(at.ArgumentTypeError, match="Temperature: tau must be a number, got 'a'"):
        at.Temperature("a")
    assert issubclass(at.ArgumentError, ValueError)
    assert issubclass(at.ArgumentTypeError, TypeError)


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="attention_is_all"):
        at.attention_is_all  # noqa: B018


def test_threads_import_one_after_the_other(monkeypatch):
    inside, most = [], []

    def slow(name):
        inside.append(name)
        time.sleep(0.01)
        most.append(len(inside))
        inside.remove(name)
        return importlib.import_module(name)

    monkeypatch.setattr(at, "import_module", slow)
    names = ("watch", "steer", "nn", "attend")
    threads = [threading.Thread(target=at.__getattr__, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 4
