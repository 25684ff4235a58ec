"""What kernels of softmax attention have in common."""

import pytest
import torch

import attentropy as at
from attentropy.core.resolve import Options, resolve
from attentropy.kernels.softmax_results import (
    FLOWING,
    SoftmaxResults,
    empty,
    key_mass,
    rows,
    unrounded,
)
from attentropy.kernels.tiled import softmax as tiled


def call(dtype=torch.float32, **given):
    q, k = torch.randn(2, 4, 3, 8, dtype=dtype), torch.randn(2, 2, 5, 8, dtype=dtype)
    return resolve(q, k, k[..., :6], Options(**given))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_empty_results_look_like_those_of_a_kernel(dtype):
    made = call(dtype)
    for name, got, want in zip(
        SoftmaxResults._fields, empty(made), tiled.forward(made), strict=True
    ):
        assert (got.shape, got.dtype, got.device) == (want.shape, want.dtype, want.device), name


def test_rows_have_every_result():
    results = tiled.forward(call())
    made = rows(results)
    for name in SoftmaxResults._fields:
        assert getattr(made, name) is getattr(results, name)
    assert made.mass is None
    assert set(FLOWING) <= set(SoftmaxResults._fields)


def test_masses_by_the_gradient_of_values():
    made = call(mask=at.causal, sink=torch.randn(4))
    eye = torch.eye(5).expand(2, 2, 5, 5)
    want = at.attend(made.q, made.k, eye, mask=at.causal, sink=made.sink, kernel="reference").out
    torch.testing.assert_close(key_mass(tiled.PASSES, made), want.sum(2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_rounded_output_is_computed_again(dtype):
    made = call(dtype, mask=at.causal)
    results = tiled.forward(made)
    found = unrounded(tiled.forward, made, results)
    assert (found is results) == (dtype == torch.float32)
    wide = [x.float() for x in made[:3]]
    want = at.attend(*wide, mask=at.causal, kernel="reference").out
    torch.testing.assert_close(found.out, want, rtol=1e-5, atol=1e-6)
