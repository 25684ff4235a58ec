"""What the gradient of a row's logits is made of."""

import math

import pytest
import torch

from attentropy.kernels.packing import INPUTS
from attentropy.kernels.softmax_results import FLOWING, SoftmaxResults
from attentropy.kernels.triton.device.views import SLOPE_KINDS
from attentropy.kernels.triton.plan_backward import plan_backward
from tests.kernels.triton.device.helpers import interpreted
from tests.kernels.triton.problems import problem, tensors


def kind(slopes, name, queries):
    """One kind of number of all rows [B,H,Q], out of the blocks in which they lie."""
    return slopes.ptr[..., SLOPE_KINDS.index(name), :].flatten(2)[..., :queries]


@interpreted
@pytest.mark.parametrize(
    "flowing", [FLOWING, ("out",), ("entropy",), ("lse", "collision"), ("varentropy",)]
)
def test_the_shift_of_every_row(flowing):
    made = problem(*tensors(21, 11, batch=2))
    rows = (2, 2, 21)
    written = SoftmaxResults(
        torch.randn(*rows, 6), *torch.randn(3, *rows), torch.zeros(rows, dtype=torch.int64),
        *torch.randn(3, *rows),
    )  # fmt: skip
    grads = {name: torch.randn_like(getattr(written, name)) for name in flowing}
    grads = {n: g.transpose(1, 2).contiguous().transpose(1, 2) for n, g in grads.items()}
    launches, _ = plan_backward(made, written, grads, dict.fromkeys(INPUTS, False))
    launches[0].start()
    want = torch.zeros(rows)
    if "out" in grads:
        want += (grads["out"] * written.out).sum(-1)
    if "entropy" in grads:
        want += grads["entropy"] * written.entropy
    if "lse" in grads:
        want -= grads["lse"]
    if "collision" in grads:
        want += 2 * grads["collision"] * written.collision
    linear = torch.zeros(rows)
    if "entropy" in grads:
        linear -= grads["entropy"]
    if "varentropy" in grads:
        d, mean = grads["varentropy"], written.entropy
        want += d * (written.varentropy - mean.square() - 2 * mean)
        linear += 2 * d * (1 + mean)
    slopes = launches[0].args["slopes"]
    made = {"shift": want, "level": written.lse / math.log(2)}
    if {"entropy", "varentropy"} & set(flowing):
        made["linear"] = linear * math.log(2)
    if "varentropy" in flowing:
        made["square"] = grads["varentropy"] * math.log(2) ** 2
    if "collision" in flowing:
        made["collision"] = 2 * grads["collision"]
    for name in ("linear", "square", "collision"):
        assert getattr(slopes, name) == (1 if name in made else None)
    for name, numbers in made.items():
        torch.testing.assert_close(kind(slopes, name, 21), numbers, atol=1e-5, rtol=1e-5, msg=name)


@interpreted
def test_the_level_is_that_of_what_is_left_when_the_maximum_is_off():
    made = problem(*tensors(21, 11, batch=2), softcap=2.0)
    written = SoftmaxResults(
        torch.randn(2, 2, 21, 6), *torch.randn(3, 2, 2, 21),
        torch.zeros(2, 2, 21, dtype=torch.int64), *torch.randn(3, 2, 2, 21),
    )  # fmt: skip
    launches, _ = plan_backward(made, written, {}, dict.fromkeys(INPUTS, False))
    launches[0].start()
    slopes = launches[0].args["slopes"]
    level = kind(slopes, "level", 21)
    torch.testing.assert_close(level, written.log_l / math.log(2), atol=1e-5, rtol=1e-5)
    assert torch.equal(kind(slopes, "m", 21), written.max_logit)
