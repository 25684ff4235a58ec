"""Which build of the fused kernel is chosen, and what is said when there is none."""

import os
import subprocess
import sys

import pytest

import attentropy as at
from attentropy.kernels.fused import build, library
from attentropy.kernels.fused import kernel as fused
from tests.kernels.fused.cases import ISAS, make


def in_new_process(code, **environment):
    env = {**os.environ, **environment}
    if os.environ.get("ATTENTROPY_EMULATED"):
        pytest.skip("an emulated Python cannot start another")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


SERVING = (
    "from attentropy.kernels.fused import library as l\n"
    "print(l.serving.isa if l.serving else l.missing)"
)


@pytest.mark.skipif(not ISAS, reason="no fused kernel for this CPU")
def test_the_best_build_serves():
    assert library.serving is not None
    assert in_new_process(SERVING, ATTENTROPY_ISA="") == library.runnable()[0]


@pytest.mark.parametrize("isa", ISAS)
def test_the_environment_chooses(isa):
    assert in_new_process(SERVING, ATTENTROPY_ISA=isa) == isa


def test_unknown_instruction_set():
    said = in_new_process(SERVING, ATTENTROPY_ISA="sse9")
    assert said == f"ATTENTROPY_ISA must be one of {', '.join(build.ISAS)}, got sse9"


def test_without_a_library_streaming_serves():
    code = (
        "import torch, attentropy as at; q = torch.ones(1, 1, 4, 8)\n"
        "print(at.explain(q, q, q).kernel); print(at.explain(q, q, q).lacking['fused'])\n"
        "print(at.attend(q, q, q).stats.entropy[0, 0, 0].item()); print(at.doctor())"
    )
    kernel, lacking, entropy, *doctor = in_new_process(
        code, ATTENTROPY_LIBRARIES="/nonexistent"
    ).splitlines()
    assert kernel == "streaming"
    assert "was not built" in lacking or "needs a Linux x86-64 CPU" in lacking
    assert float(entropy) == pytest.approx(1.386294)
    assert "CPU attention: streaming" in doctor


def test_cpu_without_avx2(monkeypatch):
    monkeypatch.setattr(library, "cpu_flags", lambda: frozenset({"sse2"}))
    assert library.runnable() == []
    assert "needs a Linux x86-64 CPU with AVX2 and FMA" in library.find()
    known = [*build.ISAS, None][0]
    assert library.find(known) == library.find()


@pytest.mark.skipif("avx512" not in build.ISAS, reason="no x86")
def test_cpu_that_lacks_what_is_asked(monkeypatch):
    monkeypatch.setattr(library, "cpu_flags", lambda: frozenset({"avx2", "fma"}))
    assert library.find("avx512") == "ATTENTROPY_ISA asks for avx512, which this CPU lacks"


@pytest.mark.skipif(not ISAS, reason="no fused kernel for this CPU")
def test_a_library_of_another_interface_says_so(monkeypatch):
    monkeypatch.setattr(library, "interface", lambda: "0123456789abcdef")
    said = library.find(ISAS[0])
    assert said == (
        f"fused_{ISAS[0]}{build.SUFFIX} is stale: its struct Args is not that of cpp/args.h "
        "(python -m attentropy.kernels.fused.build renews it)"
    )


@pytest.mark.skipif(not ISAS, reason="no fused kernel for this CPU")
def test_a_library_from_before_there_were_hashes_is_stale(monkeypatch, tmp_path):
    compiler = build.compiler()
    if compiler is None:
        pytest.skip("no compiler")
    source = tmp_path / "old.cpp"
    source.write_text('extern "C" long attentropy_fields() { return 85; }')
    target = tmp_path / f"fused_{ISAS[0]}{build.SUFFIX}"
    subprocess.run([*compiler, "-shared", "-fPIC", str(source), "-o", str(target)], check=True)
    monkeypatch.setattr(build, "LIBRARIES", tmp_path)
    assert "is stale: its struct Args is not that of cpp/args.h" in library.find(ISAS[0])


@pytest.mark.skipif(not ISAS, reason="no fused kernel for this CPU")
def test_what_is_no_library_does_not_load(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "LIBRARIES", tmp_path)
    (tmp_path / f"fused_{ISAS[0]}{build.SUFFIX}").write_bytes(b"no library")
    assert f"fused_{ISAS[0]}{build.SUFFIX} does not load: " in library.find(ISAS[0])


@pytest.mark.skipif(not ISAS, reason="no fused kernel for this CPU")
def test_the_peak_of_this_cpu_is_counted():
    assert library.serving.peak() > 1e8
    assert library.serving.bf16 == library.serving.isa.endswith("bf16")


def test_fused_by_name_without_a_library(monkeypatch):
    monkeypatch.setattr(library, "missing", "no library")
    call = make((1, 1, 1, 4, 4, 8, 8))
    assert fused.lacks(call) == "inputs on this CPU: no library"
    with pytest.raises(
        at.UnsupportedError, match="does not support inputs on this CPU: no library"
    ):
        at.attend(call.q, call.k, call.v, kernel="fused")
