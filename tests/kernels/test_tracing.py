"""Calls that are recorded instead of run are told from others."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from attentropy.kernels.tracing import traced


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Plain(torch.Tensor):
    pass


def test_plain_tensors_are_run():
    x = torch.ones(2)
    assert not traced(x, None, torch.nn.Parameter(x), x.as_subclass(Plain))
    with torch.inference_mode():
        assert not traced(x + 1)


def test_modes_and_tensors_without_memory_are_recorded():
    x = torch.ones(2)
    with Passing():
        assert traced(x)
    with FakeTensorMode() as mode:
        fake = torch.ones(2)
        assert traced(x)
    assert traced(None, fake)
    assert mode is not None


def test_torch_compile_records():
    found = []

    def asked(x):
        found.append(traced(x))
        return x + 1

    torch.compile(asked, backend="eager")(torch.ones(2))
    assert found == [True]
