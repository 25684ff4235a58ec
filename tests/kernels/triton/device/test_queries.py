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

DRAWN = torch.Generator().manual_seed(7)
SIZES = [TileSizes("square", 16, 16, 4, 1), TileSizes("parts", 32, 16, 4, 1, part=16)]


def prepared(terms, names):
    """Launches, where they write, and the gradients that autograd has of the reference."""
    q, k, v = tensors(21, 35, width=20)
    made = problem(q, k, v, **terms)
    leaves = {n: getattr(made.call, n).detach().requires_grad_() for n in names}
    rows = reference.attend(made.call._replace(**leaves))
    names_of_results = FLOWING[:4]
    grads = {n: torch.randn_like(getattr(rows, n)) for n in names_of_results}
    flowing = [getattr(rows, n) for n in names_of_results]
    want = torch.autograd.grad(flowing, list(leaves.values()), list(grads.values()))
    held = SoftmaxResults(*(getattr(rows, n).detach() for n in SoftmaxResults._fields))
    launches, found = plan_backward(made, held, grads, {n: n in names for n in INPUTS})
    return launches, found, dict(zip(names, want, strict=True))


@interpreted
@pytest.mark.parametrize("sizes", SIZES, ids=lambda x: x.name)
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
