"""Libraries know what they were compiled from, and are compiled again when that changed."""

import platform
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from attentropy.kernels.fused import build, library

needs_compiler = pytest.mark.skipif(build.unable() is not None, reason="nothing compiles here")
needs_isa = pytest.mark.skipif(not build.ISAS, reason="no fused kernel for this CPU")
BEST, LEAST = next(iter(build.ISAS), ""), next(reversed(build.ISAS), "")


@pytest.fixture
def tree(monkeypatch, tmp_path):
    """Sources of its own, and a folder for libraries."""
    shutil.copytree(build.CPP, tmp_path / "cpp")
    monkeypatch.setattr(build, "CPP", tmp_path / "cpp")
    monkeypatch.setattr(build, "LIBRARIES", tmp_path / "lib")
    return tmp_path


@pytest.fixture
def compiled(monkeypatch):
    """Instruction sets that were asked to be compiled; nothing is."""
    asked = []

    def instead(command, isa, extra):
        asked.append(isa)
        library = build.path_of(isa)
        library.write_bytes(f"..attentropy sources {build.sources(isa)}..".encode())
        return ""

    monkeypatch.setattr(build, "_compile", instead)
    return asked


def change(tree, name, text):
    path = tree / "cpp" / name
    path.write_text(path.read_text() + text)


def test_comments_and_spaces_are_no_interface(tree):
    before = build.interface()
    change(tree, "args.h", "\n// a remark\n\n")
    assert build.interface() == before
    path = tree / "cpp" / "args.h"
    path.write_text(path.read_text().replace("int64_t B, H,", "int64_t H, B,"))
    assert build.interface() != before


@needs_isa
@pytest.mark.parametrize("name", ["args.h", "fused.cpp", "forward.h", "vec.h"])
def test_every_file_is_a_source(tree, name):
    before = build.sources(LEAST)
    change(tree, name, "\n// a remark\n")
    assert build.sources(LEAST) != before


@needs_isa
def test_flags_are_sources_too(tree, monkeypatch):
    before = build.sources(LEAST), build.sources(BEST)
    assert before[0] != before[1]
    monkeypatch.setattr(build, "_FLAGS", [*build._FLAGS, "-O1"])
    assert build.sources(LEAST) != before[0]


@needs_compiler
def test_only_what_changed_is_built(tree, compiled):
    assert build.main(["--if-changed"]) == 0
    assert compiled == list(build.ISAS)
    assert build.main(["--if-changed"]) == 0
    assert compiled == list(build.ISAS)
    build.path_of(BEST).unlink()
    assert build.main(["--if-changed"]) == 0
    assert compiled == [*build.ISAS, BEST]
    change(tree, "row.h", "\n")
    assert not build.is_current(LEAST)
    assert build.main(["--if-changed"]) == 0
    assert compiled == [*build.ISAS, BEST, *build.ISAS]


@needs_compiler
def test_a_built_library_carries_both_hashes_and_a_change_makes_it_stale(tree, capsys):
    built, problem = build.build(["-O0"], isas=[LEAST])
    assert (built, problem) == ([build.path_of(LEAST)], "")
    assert build.is_current(LEAST)
    data = built[0].read_bytes()
    assert f"attentropy interface {build.interface()}".encode() in data
    change(tree, "args.h", "\nstruct More { int64_t field; };\n")
    assert not build.is_current(LEAST)
    if LEAST in library.runnable():
        assert "is stale: its struct Args is not that of cpp/args.h" in library.find(LEAST)


@needs_compiler
def test_a_mistake_in_the_sources_is_an_error(tree, monkeypatch, capsys):
    monkeypatch.setattr(build, "ISAS", {LEAST: build.ISAS[LEAST]})
    change(tree, "fused.cpp", "\n#error a mistake\n")
    assert build.main(["--if-changed"]) == 1
    assert "a mistake" in capsys.readouterr().err
    assert build.main(["-O0"]) == 1


def test_a_machine_that_cannot_compile_is_no_error(tree, monkeypatch, capsys):
    monkeypatch.setattr(build, "unable", lambda: "no C++ compiler: set CXX, or install g++")
    assert build.main(["--if-changed"]) == 0
    assert "nothing built: no C++ compiler" in capsys.readouterr().err
    assert build.main([]) == 1


def test_build_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "LIBRARIES", tmp_path)
    monkeypatch.setenv("CXX", "/nonexistent/compiler")
    built, problem = build.build()
    assert built == []
    assert "/nonexistent/compiler" in problem or "no fused kernel for" in problem
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    assert build.build()[0] == []


@needs_compiler
def test_the_libraries_of_this_tree_are_of_these_sources():
    stale = [isa for isa in build.ISAS if build.path_of(isa).exists() and not build.is_current(isa)]
    assert stale == [], "python -m attentropy.kernels.fused.build --if-changed renews them"


@pytest.mark.parametrize(
    ("system", "machine", "isas", "name", "tag"),
    [
        ("linux", "x86_64", "avx512bf16 avx512 avx2", "fused_avx2.so", "linux_x86_64"),
        ("linux", "aarch64", "neonbf16 neon", "fused_neon.so", "linux_aarch64"),
        ("darwin", "arm64", "neonbf16 neon", "fused_neon.dylib", "macosx_11_0_arm64"),
        ("darwin", "x86_64", "", None, None),
        ("win32", "AMD64", "", None, None),
    ],
)
def test_every_machine_has_its_libraries(monkeypatch, system, machine, isas, name, tag):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    there = SimpleNamespace(**runpy.run_path(build.__file__))
    assert list(there.ISAS) == isas.split()
    if not isas:
        assert there.unable() == f"no fused kernel for {system} on {machine}"
        return
    assert there.path_of(isas.split()[-1]).name == name
    assert there.platform_tag() == tag
    oldest = [flag for flag in there._FLAGS if "version-min" in flag]
    assert oldest == (["-mmacosx-version-min=11.0"] if system == "darwin" else [])


def test_the_module_needs_nothing_but_the_standard_library():
    code = (
        f"import runpy, sys; sys.modules['torch'] = None; sys.modules['attentropy'] = None\n"
        f"runpy.run_path({str(Path(build.__file__))!r})"
    )
    subprocess.run([sys.executable, "-S", "-c", code], check=True)
