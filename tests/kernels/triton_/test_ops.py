"""The operators as torch sees them."""

import pytest
import torch

import attentropy as at
from attentropy.kernels.triton_.ops import triton_backward, triton_forward


def arguments(*, grad=True):
    q, k, v = torch.randn(1, 2, 5, 4), torch.randn(1, 1, 7, 4), torch.randn(1, 1, 7, 3)
    scale, bias, relative = torch.rand(1, 2, 1), torch.randn(1, 1, 5, 7), torch.randn(2, 5)
    leaves = [x.requires_grad_(grad) for x in (q, k, v, scale, bias, relative)]
    q, k, v, scale, bias, relative = leaves
    hi = torch.arange(3, 8, dtype=torch.int32).view(1, 1, 5)
    return q, k, v, scale, None, hi, None, bias, relative, None, 0.0, 0.2, torch.tensor(7)


def test_opcheck_of_the_forward_operator():
    torch.library.opcheck(triton_forward, arguments())


def test_opcheck_of_the_backward_operator():
    given = arguments(grad=False)
    out, entropy, lse, max_logit, _, collision, log_l = triton_forward(*given)
    results = (out, entropy, max_logit, collision, log_l)
    grads = (torch.randn_like(out), None, torch.randn_like(lse), None)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        triton_backward, (*grads, *results, *given, [True, True, False]), test_utils=checks
    )


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles_into_one_graph(backend):
    q, k, v = (x.detach().requires_grad_() for x in arguments()[:3])

    def loss(q, k, v):
        out, stats = at.attend(q, k, v, mask=at.causal, softcap=3.0, kernel="triton")
        return out.sum() + stats.entropy.sum() + stats.sparsity.sum()

    want = torch.autograd.grad(loss(q, k, v), (q, k, v))
    got = torch.compile(loss, fullgraph=True, backend=backend)(q, k, v)
    torch.testing.assert_close(got, loss(q, k, v))
    for a, b in zip(torch.autograd.grad(got, (q, k, v)), want, strict=True):
        torch.testing.assert_close(a, b)
