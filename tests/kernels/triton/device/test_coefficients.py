"""What the gradient of a row's logits is made of."""

import pytest
import torch

from attentropy.kernels.packing import INPUTS
from attentropy.kernels.softmax_results import FLOWING, SoftmaxResults
from attentropy.kernels.triton.plan_backward import plan_backward
from tests.kernels.triton.device.helpers import interpreted
from tests.kernels.triton.problems import problem, tensors


@interpreted
@pytest.mark.parametrize("flowing", [FLOWING[:4], ("out",), ("entropy",), ("lse", "collision")])
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
    torch.testing.assert_close(launches[0].args["slopes"].shift, want, atol=1e-5, rtol=1e-5)
