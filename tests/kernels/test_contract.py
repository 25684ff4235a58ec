"""Every kernel has what the Protocol says; mypy checks the types where KERNELS is made."""

import inspect

import pytest
import torch

import attentropy as at
from attentropy.attention.choice import KERNELS
from attentropy.core.call import Call, Rows
from attentropy.core.resolve import Options, resolve
from attentropy.kernels.contract import Kernel

MEMBERS = [name for name in vars(Kernel) if not name.startswith("_")]


def call_for(kernel):
    q, k = torch.randn(1, 4, 5, 16), torch.randn(1, 2, 7, 16)
    weights = at.Decay(0.5) if kernel == "linear" else at.Softmax()
    return resolve(q, k, k[..., :3], Options(mask=at.causal, weights=weights))


def test_the_protocol_is_what_architecture_says():
    assert sorted(MEMBERS) == ["attend", "key_mass", "lacks", "name"]


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_has_all_of_it(name):
    kernel = KERNELS[name]
    assert kernel.name == name
    for member in ("attend", "key_mass", "lacks"):
        (parameter,) = inspect.signature(getattr(kernel, member)).parameters.values()
        assert parameter.annotation is Call, member


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_gives_rows_and_masses(name):
    kernel, call = KERNELS[name], call_for(name)
    if kernel.lacks(call) is not None:
        pytest.skip(f"{name} lacks {kernel.lacks(call)}")
    rows, mass = kernel.attend(call), kernel.key_mass(call)
    assert isinstance(rows, Rows)
    assert rows.out.shape == (1, 4, 5, 3)
    assert rows.collision.shape == (1, 4, 5)
    assert mass.shape == (1, 4, 7)
    assert mass.dtype == torch.float32
    assert not mass.requires_grad


@pytest.mark.parametrize("name", KERNELS)
def test_what_a_kernel_lacks_is_said_in_words(name):
    odd = call_for("streaming")._replace(weights=at.Gumbel(), additive=torch.ones(1, 16))
    reason = KERNELS[name].lacks(odd)
    assert reason is None or (isinstance(reason, str) and reason)
    assert (reason is None) == (name in ("streaming", "reference"))
