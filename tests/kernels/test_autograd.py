"""Gradients that refuse to be differentiated again, and backward passes that refuse batches."""

import pytest
import torch

import attentropy as at
from attentropy.kernels.autograd import once, unbatched


def test_gradients_are_as_they_are_without_grad_mode():
    g = torch.ones(3)
    with torch.no_grad():
        assert once("fused", g, None) == (g, None)


@pytest.mark.parametrize("by", ["x", "unrelated"])
def test_a_second_derivative_names_the_kernel_and_the_way_out(by):
    x, unrelated = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    (g, none) = once("tiled", torch.full((3,), 2.0), None, anchors=(x, unrelated, None))
    assert none is None
    assert g.tolist() == [2.0] * 3
    with pytest.raises(
        at.UnsupportedError, match="double backward .* by the tiled kernel; kernel='r"
    ):
        torch.autograd.grad(g.sum(), {"x": x, "unrelated": unrelated}[by])


def test_batched_gradients_are_refused():
    unbatched("fused", None, torch.ones(3))

    def inside(g):
        unbatched("fused", g)
        return g

    with pytest.raises(
        at.UnsupportedError, match="batched gradients .* not supported by the fused"
    ):
        torch.func.vmap(inside)(torch.ones(2, 3))
