import pytest
import torch

import attentropy as at
from attentropy.kernels.linear import CHUNK, recurrence
from tests.cases import Shape, assert_same, run

LENGTHS = [(1, 1), (5, 5), (3, 300), (CHUNK, CHUNK), (CHUNK + 1, CHUNK + 1), (300, 300), (7, 2)]


@pytest.mark.parametrize("mask", [None, at.causal], ids=["full", "causal"])
@pytest.mark.parametrize(
    "feature", ["elu", "relu", "exp", torch.sigmoid], ids=["elu", "relu", "exp", "own"]
)
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
def test_kernelised_equals_the_reference(queries, keys, feature, mask):
    tensors = Shape(queries=queries, keys=keys).tensors()
    given = {"weights": at.Kernelised(feature), "mask": mask}
    want = run("reference", tensors, given)
    assert_same(run("linear", tensors, given), want, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("rate", [1e-3, 0.5, 0.999, 1.0])
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
def test_decay_equals_the_reference(queries, keys, rate):
    tensors = Shape(queries=queries, keys=keys).tensors()
    given = {"weights": at.Decay(rate)}
    want = run("reference", tensors, given)
    assert_same(run("linear", tensors, given), want, atol=1e-10, rtol=1e-9)


def test_every_head_has_its_own_rate_and_its_gradient():
    q, k, v = Shape(queries=200, keys=200).tensors()
    rate = torch.tensor([0.2, 0.9, 0.99, 1.0], dtype=torch.float64, requires_grad=True)
    for kernel in ("linear", "reference"):
        out = at.attend(q, k, v, weights=at.Decay(rate), kernel=kernel).out
        (g,) = torch.autograd.grad(out.square().sum(), rate)
        if kernel == "linear":
            got = g
    torch.testing.assert_close(got, g)


def test_the_recurrence_step_by_step():
    x = torch.randn(1, 2, 3 * CHUNK + 5, 3, dtype=torch.float64)
    rate = torch.tensor([0.9, 0.3], dtype=torch.float64)
    y = torch.zeros(1, 2, 3, dtype=torch.float64)
    got = recurrence(x, rate)
    for i in range(x.shape[2]):
        y = rate.view(1, 2, 1) * y + x[:, :, i]
        torch.testing.assert_close(got[:, :, i], y)


def test_what_it_lacks():
    q, k, v = Shape().tensors()
    with pytest.raises(
        at.UnsupportedError, match="kernel='linear' does not support Softmax weights"
    ):
        at.attend(q, k, v, kernel="linear")
    with pytest.raises(at.UnsupportedError, match="does not support dropout; .*streaming"):
        at.attend(q, k, v, kernel="linear", weights=at.Kernelised(), dropout=0.1)


def test_auto_takes_it_where_it_serves():
    q, k, v = Shape().tensors()
    assert at.explain(q, k, v, weights=at.Kernelised(), mask=at.causal).kernel == "linear"
    assert at.explain(q, k, v, weights=at.Kernelised(), mask=at.strided(2)).kernel == "streaming"


@pytest.mark.parametrize("weights", [at.Kernelised("elu"), at.Decay(0.9)])
@pytest.mark.parametrize("n", [9, 300])
def test_nan_and_infinities_stay_with_rows_that_see_them(weights, n):
    """A value reaches no row before it, and the gradient of a row no value after it."""
    q, k, v = (torch.randn(1, 2, n, 4) for _ in range(3))
    for bad in (torch.nan, torch.inf):
        spoiled = v.clone()
        spoiled[:, :, n - 2] = bad
        out = at.attend(q, k, spoiled, weights=weights, mask=at.causal, kernel="linear").out
        want = at.attend(q, k, v, weights=weights, mask=at.causal, kernel="linear").out
        torch.testing.assert_close(out[:, :, : n - 2], want[:, :, : n - 2])
        assert not out[:, :, n - 2 :].isfinite().any()
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    grad = torch.randn(1, 2, n, 4)
    grad[:, :, n - 4] = torch.nan
    at.attend(*leaves, weights=weights, mask=at.causal, kernel="linear").out.backward(grad)
    others = [x.clone().requires_grad_() for x in (q, k, v)]
    at.attend(*others, weights=weights, mask=at.causal, kernel="reference").out.backward(grad)
    for x, y in zip(leaves, others):
        if y.grad is not None and x.grad is not None:
            torch.testing.assert_close(x.grad, y.grad, equal_nan=True, rtol=1e-3, atol=1e-4)
