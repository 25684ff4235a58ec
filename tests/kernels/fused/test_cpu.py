"""Flags of the CPU, as every system tells them."""

import ctypes
import platform
import sys
from types import SimpleNamespace

import pytest

from attentropy.kernels.fused import cpu


@pytest.fixture
def machine(monkeypatch):
    """Pretends to be another machine, whose C library is the one given."""

    def pretend(system, name, library=None):
        monkeypatch.setattr(sys, "platform", system)
        monkeypatch.setattr(platform, "machine", lambda: name)
        monkeypatch.setattr(ctypes, "CDLL", lambda path: library)
        return cpu.cpu_flags.__wrapped__()

    return pretend


class Function:
    """A C function: ctypes lets one set its types."""

    def __init__(self, body):
        self.body = body

    def __call__(self, *arguments):
        return self.body(*arguments)


def hwcaps(**entries):
    return SimpleNamespace(getauxval=Function(lambda entry: entries.get(f"at{entry}", 0)))


def sysctl(known):
    def body(name, value, size, *_):
        assert size._obj.value == ctypes.sizeof(ctypes.c_int)
        if name not in known:
            return -1
        value._obj.value = known[name]
        return 0

    return SimpleNamespace(sysctlbyname=Function(body))


def test_linux_on_x86(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nflags : fpu avx2 fma\n\nprocessor : 1\nflags : fpu\n")
    assert cpu._of_cpuinfo(info) == {"fpu", "avx2", "fma"}
    assert cpu._of_cpuinfo(tmp_path / "none") == frozenset()


def test_linux_on_arm(machine):
    assert machine("linux", "aarch64", hwcaps(at16=0b11, at26=1 << 14)) == {"asimd", "bf16"}
    assert machine("linux", "aarch64", hwcaps(at16=0b11, at26=1 << 13)) == {"asimd"}
    assert machine("linux", "aarch64", hwcaps(at16=1)) == frozenset()


def test_macos_on_arm(machine):
    names = {b"hw.optional.AdvSIMD": 1, b"hw.optional.arm.FEAT_BF16": 1}
    assert machine("darwin", "arm64", sysctl(names)) == {"asimd", "bf16"}
    assert machine("darwin", "arm64", sysctl(names | {b"hw.optional.arm.FEAT_BF16": 0})) == {
        "asimd"
    }
    assert machine("darwin", "arm64", sysctl({})) == {"asimd"}, "a name that this macOS lacks"


@pytest.mark.parametrize(("system", "name"), [("win32", "AMD64"), ("darwin", "x86_64")])
def test_elsewhere_nothing_is_known(machine, system, name):
    assert machine(system, name) == frozenset()
