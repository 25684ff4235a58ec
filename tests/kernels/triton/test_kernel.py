"""Which calls the Triton kernel serves, and who chooses it. Needs no triton."""

import os
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import attentropy as at
from attentropy.kernels.triton import kernel as triton
from tests.cases import Shape

SHAPE = Shape(batch=1, heads=2, key_heads=1, queries=5, keys=7)


def tensors(dtype=torch.float32):
    return [x.detach() for x in SHAPE.tensors(dtype)]


def lacking(*given, **options):
    return at.explain(*given, **options).lacking["triton"]


@pytest.fixture
def ready(monkeypatch):
    monkeypatch.setattr(triton, "INSTALLED", True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.mark.usefixtures("ready")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, None),
        ({"mask": at.causal & at.strided(2)}, None),  # small, so that it becomes a table
        ({"weights": at.ReluSquared()}, "ReluSquared weights (only Softmax)"),
        (
            {"score": at.Additive(torch.ones(3, 16), torch.ones(3, 16), torch.ones(3))},
            "the additive score",
        ),
    ],
)
def test_says_what_it_lacks(options, words):
    assert lacking(*tensors(), **options) == words


@pytest.mark.usefixtures("ready")
def test_lacks_masks_that_are_too_large_for_a_table():
    long = torch.ones(1, 1, 2049, 16)
    assert lacking(long, long, long, mask=at.causal & at.strided(2)) == "a tile predicate mask"


@pytest.mark.usefixtures("ready")
def test_says_which_tensors_it_lacks():
    assert lacking(*tensors(torch.float64)) == "float64"
    wide = torch.ones(1, 1, 2, 257)
    assert lacking(wide, wide, wide) == "heads wider than 256"


def test_without_interpreter_only_cuda_tensors(monkeypatch):
    monkeypatch.setattr(triton, "INSTALLED", True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(at.UnsupportedError, match=r"CPU tensors \(only CUDA tensors, or TRITON_I"):
        at.attend(*tensors(), kernel="triton")


def test_a_clear_error_without_triton(monkeypatch):
    monkeypatch.setattr(triton, "INSTALLED", False)
    words = r"kernel='triton' does not support this environment, where triton is not installed"
    with pytest.raises(at.UnsupportedError, match=words):
        at.attend(*tensors(), kernel="triton")


@pytest.mark.usefixtures("ready")
def test_auto_takes_triton_on_cuda_and_never_its_interpreter():
    assert at.explain(*tensors()).kernel != "triton"
    with FakeTensorMode():
        q = torch.empty(1, 2, 5, 16, device="cuda")
        k = torch.empty(1, 1, 7, 16, device="cuda")
        assert at.explain(q, k, k).kernel == "triton"
        assert at.explain(q, k, k, mask=at.causal, softcap=3.0).kernel == "triton"
        assert at.explain(q, k, k, weights=at.ReluSquared()).kernel == "streaming"
        assert at.explain(q.double(), k.double(), k.double()).kernel == "streaming"


def test_triton_is_imported_by_its_own_kernel_only():
    code = (
        "import sys, torch, attentropy as at; q = torch.ones(1, 1, 2, 4); at.attend(q, q, q); "
        "print(any(name.startswith('attentropy.kernels.triton.device') for name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "False"
