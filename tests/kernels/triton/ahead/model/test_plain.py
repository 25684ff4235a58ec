"""The measuring stick computes attention: else it would measure something else."""

import pytest
import torch

from attentropy.kernels.triton.ahead.model import plain
from tests.kernels.triton.device.helpers import interpreted

LOG2E = 1.4426950408889634


@interpreted
@pytest.mark.parametrize("kind", ["nothing", "bias", "mask", "relative"])
def test_forward_and_gradients_are_those_of_torch(kind):
    torch.manual_seed(0)
    bias = torch.randn(64, 64)
    seen = (torch.rand(64, 64) < 0.7) | torch.eye(64).bool()
    far = torch.randn(2 * 5 + 1)
    reach = 5 if kind == "relative" else 0
    pairs = {"nothing": None, "bias": bias * LOG2E, "mask": seen, "relative": far * LOG2E}[kind]
    q, k, v, do = (torch.randn(2, 64, 16) for _ in range(4))
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    hidden = torch.ones(64, 64).triu(1).bool()
    s = wide[0] @ wide[1].mT / 4
    s = s + bias if kind == "bias" else s
    place = torch.arange(64)
    s = s + far[(place - place[:, None]).clamp(-5, 5) + 5] if kind == "relative" else s
    s = s.masked_fill(hidden | ~seen if kind == "mask" else hidden, -torch.inf)
    want = s.softmax(-1) @ wide[2]
    want.backward(do.double())
    out, lse = torch.empty_like(q), torch.empty(2, 64)
    sizes = {"WIDTH": 16, "BLOCK": 32, "TILE": 16, "REACH": reach, "PRECISION": None}
    plain.forward[(2, 2)](q, k, v, out, lse, pairs, 0.25, 64, **sizes)
    torch.testing.assert_close(out, want.float(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse, s.logsumexp(-1).float() * LOG2E, atol=1e-5, rtol=1e-5)
    delta = (do * out).sum(-1)
    scaled = q * (0.25 * LOG2E)
    dq, dk, dv = (torch.empty_like(q) for _ in range(3))
    plain.queries[(2, 2)](scaled, k, v, do, dq, lse, delta, pairs, 64, **sizes)
    plain.keys[(2, 2)](scaled, k, v, do, dk, dv, lse, delta, pairs, 64, **sizes)
    torch.testing.assert_close(dq * 0.25, wide[0].grad.float(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(dk / LOG2E, wide[1].grad.float(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(dv, wide[2].grad.float(), atol=1e-5, rtol=1e-5)
