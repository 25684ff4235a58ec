"""The forward kernel by itself, launched on calls made by hand."""

import pytest
import torch

from attentropy.kernels import reference
from attentropy.kernels.triton.configs import TileSizes
from attentropy.kernels.triton.plan_forward import plan_forward
from tests.kernels.triton.device.helpers import interpreted
from tests.kernels.triton.problems import problem, tensors

pytestmark = pytest.mark.interpreter

SIZES = [TileSizes(16, 16, 4, 1), TileSizes(32, 16, 4, 1, part=16), TileSizes(16, 64, 4, 1)]


def launched(made, sizes, *, again=True):
    launches, written = plan_forward(made)
    for one in launches if again else launches[:1]:
        one.start_with(sizes)
    return written


@interpreted
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("hides", [False, True])
def test_rows_are_those_of_the_reference(sizes, hides):
    hi = (torch.arange(37) + 17).int().view(1, 1, 37) if hides else None
    made = problem(*tensors(37, 53, heads=4, key_heads=2, width=20), hi=hi)
    got, want = launched(made, sizes), reference.attend(made.call)
    for name in ("out", "entropy", "lse", "max_logit", "collision", "log_l"):
        x, y = getattr(got, name), getattr(want, name)
        torch.testing.assert_close(x, y, atol=5e-6, rtol=1e-5, msg=name)
    assert torch.equal(got.argmax, want.argmax)


@interpreted
@pytest.mark.parametrize(("width", "value_width"), [(40, 24), (24, 40), (40, 40)])
def test_heads_of_two_tiles_are_those_of_the_reference(width, value_width):
    hi = (torch.arange(37) + 17).int().view(1, 1, 37)
    drawn = tensors(37, 53, heads=4, key_heads=2, width=width, value_width=value_width)
    drawn[2][0, 0, 50, value_width - 1] = torch.nan
    made = problem(*drawn, hi=hi)
    got, want = launched(made, SIZES[0]), reference.attend(made.call)
    for name in ("out", "entropy", "varentropy", "lse", "max_logit", "collision"):
        x, y = getattr(got, name), getattr(want, name)
        torch.testing.assert_close(x, y, atol=1e-5, rtol=2e-5, msg=name, equal_nan=True)
    assert torch.equal(got.argmax, want.argmax)


@interpreted
def test_the_second_launch_mends_what_a_hidden_nan_spoiled():
    q, k, v = tensors(37, 53)
    v[0, 0, 50] = torch.nan
    hi = (torch.arange(37) + 17).int().view(1, 1, 37)
    made = problem(q, k, v, hi=hi)
    once, twice = launched(made, SIZES[0], again=False), launched(made, SIZES[0])
    blind_to_it = made.call.seen.hi[0, 0] <= 50
    assert once.out[0, 0, blind_to_it].isnan().any()
    assert twice.out[0, 0, blind_to_it].isfinite().all()
    assert twice.out[0, 0, ~blind_to_it].isnan().all()
