"""The sweep over the keys by itself: gradients of q, scale and tables."""

import pytest
import torch

from attentropy.kernels import reference
from attentropy.kernels.packing import INPUTS
from attentropy.kernels.softmax_results import FLOWING, SoftmaxResults
from attentropy.kernels.triton.configs import TileSizes
from attentropy.kernels.triton.plan_backward import plan_backward
from tests.kernels.triton.device.helpers import interpreted
from tests.kernels.triton.problems import problem, tensors

pytestmark = pytest.mark.interpreter

DRAWN = torch.Generator().manual_seed(7)
SIZES = [TileSizes(16, 16, 4, 1), TileSizes(32, 16, 4, 1, part=16)]


def prepared(terms, names, *, width=20, value_width=6):
    """Launches, where they write, and the gradients that autograd has of the reference."""
    q, k, v = tensors(21, 35, width=width, value_width=value_width)
    made = problem(q, k, v, **terms)
    leaves = {n: getattr(made.call, n).detach().requires_grad_() for n in names}
    rows = reference.attend(made.call._replace(**leaves))
    grads = {n: torch.randn_like(getattr(rows, n)) for n in FLOWING}
    flowing = [getattr(rows, n) for n in FLOWING]
    want = torch.autograd.grad(flowing, list(leaves.values()), list(grads.values()))
    held = SoftmaxResults(*(getattr(rows, n).detach() for n in SoftmaxResults._fields))
    launches, found = plan_backward(made, held, grads, {n: n in names for n in INPUTS})
    return launches, found, dict(zip(names, want, strict=True))


@interpreted
@pytest.mark.parametrize(("width", "value_width"), [(40, 24), (24, 40)])
def test_heads_of_two_tiles_have_the_gradients_of_the_reference(width, value_width):
    terms = {"scale": torch.rand(1, 2, 21, generator=DRAWN) / 4}
    terms["hi"] = (torch.arange(21) + 10).int().view(1, 1, 21)
    names = ("q", "scale", "k", "v")
    launches, found, want = prepared(terms, names, width=width, value_width=value_width)
    for one in launches:
        one.start_with(SIZES[0])
    for name in names:
        torch.testing.assert_close(found[name], want[name], atol=4e-5, rtol=1e-4, msg=name)


@interpreted
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(
    ("terms", "names"),
    [
        ({}, ("q",)),
        ({"scale": torch.rand(1, 2, 21, generator=DRAWN) / 4}, ("q", "scale")),
        ({"bias": torch.randn(1, 2, 21, 35, generator=DRAWN)}, ("q", "bias")),
        ({"bias": torch.randn(1, 2, 1, 35, generator=DRAWN)}, ("bias",)),
        ({"relative": torch.randn(2, 9, generator=DRAWN)}, ("relative",)),
        ({"hi": (torch.arange(21) + 10).int().view(1, 1, 21), "softcap": 2.0}, ("q",)),
    ],
    ids=["plain", "scale", "bias", "row of bias", "relative", "causal softcap"],
)
def test_gradients_are_those_of_the_reference(sizes, terms, names):
    launches, found, want = prepared(terms, names)
    for one in launches[:2]:
        one.start_with(sizes)
    for name in names:
        torch.testing.assert_close(found[name], want[name], atol=2e-5, rtol=1e-4, msg=name)
