"""Varentropy summed about the mean, where the forward pass marked a row."""

import pytest
import torch

from attentropy.kernels import reference
from attentropy.kernels.triton.configs import TileSizes
from attentropy.kernels.triton.plan_forward import plan_forward
from tests.kernels.triton.device.helpers import interpreted
from tests.kernels.triton.problems import problem, tensors

pytestmark = pytest.mark.interpreter

SIZES = TileSizes(16, 16, 4, 1)


def flat_but_for_one(queries, keys):
    """Logits that hardly vary, below one that lies higher in half of the rows."""
    q, k, v = tensors(queries, keys)
    q = q / 100
    q[..., 0] = torch.arange(queries) % 2
    k[..., 0] = 0.0
    k[:, :, 5, 0] = 1.0
    return q, k, v


def varentropy(made, *, launches=None):
    planned, written = plan_forward(made)
    for one in planned[:launches]:
        one.start_with(SIZES)
    return written.varentropy


@interpreted
@pytest.mark.parametrize(
    "terms",
    [{}, {"hi": (torch.arange(20) + 130).int().view(1, 1, 20)}, {"softcap": 2.0},
     {"bias": torch.linspace(0, 0.01, 150).view(1, 1, 1, 150)}, {"scale": -torch.ones(1, 1, 1)}],
    ids=["full", "causal", "softcap", "bias", "negative"],
)  # fmt: skip
def test_rows_that_lost_digits_have_them_again(terms):
    made = problem(*flat_but_for_one(20, 150), **terms)
    wide = made.call._replace(
        **{n: getattr(made.call, n).double() for n in ("q", "k", "v", "scale")}
    )
    want = reference.attend(wide).varentropy
    before = (varentropy(made, launches=1) - want).abs() / want
    after = (varentropy(made) - want).abs() / want
    assert after.max() < 1e-5
    if "scale" not in terms:
        assert before.max() > after.max()


@interpreted
def test_rows_without_a_mark_stay_as_they_are():
    made = problem(*tensors(37, 53))
    launches, written = plan_forward(made)
    for one in launches[:2]:
        one.start_with(SIZES)
    assert not launches[0].args["unsure"].any()
    written.varentropy.fill_(7.0)
    launches[2].start_with(SIZES)
    assert (written.varentropy == 7.0).all()
