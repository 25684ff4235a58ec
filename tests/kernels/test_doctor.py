"""What is said about this machine."""

import pytest
import torch

from attentropy.kernels import doctor
from attentropy.kernels.fused import build, library
from attentropy.kernels.triton import kernel as triton


def test_doctor_fits_one_screen_and_names_the_kernel():
    health = doctor.doctor()
    assert health.kernel == ("fused" if library.serving else "streaming")
    assert len(str(health).splitlines()) <= 24
    assert f"CPU attention: {health.kernel}" in str(health)
    assert health.as_dict()["builds"].keys() == build.ISAS.keys()


def test_without_a_library_it_says_why(monkeypatch):
    monkeypatch.setattr(library, "serving", None)
    monkeypatch.setattr(library, "missing", "no library was built")
    health = doctor.doctor()
    assert health.kernel == "streaming"
    assert health.reason == "the fused kernel cannot run: no library was built"
    assert "Statistics are the same with streaming" in str(health)


@pytest.mark.skipif(library.serving is None, reason="no fused kernel for this CPU")
def test_the_environment_is_named(monkeypatch):
    monkeypatch.setenv("ATTENTROPY_ISA", library.serving.isa)
    assert doctor.doctor().reason == f"ATTENTROPY_ISA asks for {library.serving.isa}"


@pytest.mark.skipif(not build.ISAS, reason="no fused kernel for this CPU")
def test_the_state_of_every_build(monkeypatch, tmp_path):
    isa = next(reversed(build.ISAS))
    monkeypatch.setattr(build, "LIBRARIES", tmp_path)
    assert doctor.doctor().builds[isa].startswith("not built")
    build.path_of(isa).write_bytes(b"attentropy sources 0123456789abcdef")
    assert doctor.doctor().builds[isa].startswith("built from older sources")
    text = f"attentropy sources {build.sources(isa)}"
    build.path_of(isa).write_bytes(b"\0" + text.encode() + b"\0")
    assert doctor.doctor().builds[isa].startswith("built")
    assert "older" not in doctor.doctor().builds[isa]


def test_on_a_gpu_it_says_what_would_serve(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H100")
    monkeypatch.setenv("ATTENTROPY_TILES", "mine.json")
    monkeypatch.setattr(triton, "INSTALLED", True)
    found = doctor.doctor()
    assert found.cuda
    assert found.gpu.startswith("triton serves on H100 (sm_90), in float16, bfloat16 and float32")
    assert "measured tile sizes of mine.json" in str(found)
    monkeypatch.setattr(triton, "INSTALLED", False)
    assert doctor.doctor().gpu == (
        "streaming serves on H100 (sm_90); triton, which is faster, is not installed"
    )
    monkeypatch.setattr(triton, "INSTALLED", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert "older than the cards" in doctor.doctor().gpu
