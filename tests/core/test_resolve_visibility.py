"""A mask that has been resolved already is taken as it is."""

import pytest
import torch

import attentropy as at
from attentropy.attention.attend import run
from attentropy.core.errors import ArgumentError
from attentropy.core.masks import Extent
from attentropy.core.resolve import Options, resolve
from attentropy.core.visibility import Visibility
from attentropy.kernels.attended import attended

CPU = torch.device("cpu")
Q, K = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8)
EXTENT = Extent(2, 4, 5, 7, CPU)


def compute(**options):
    call = resolve(Q, K, K, Options(**options))
    return attended(call, run(call, "auto"))


@pytest.mark.parametrize("mask", [at.causal, at.strided(2), torch.rand(5, 7) > 0.4, at.full])
def test_it_gives_what_the_mask_gives(mask):
    given = at.dense(mask) if isinstance(mask, torch.Tensor) else mask
    seen = Visibility.of_mask(given, EXTENT).with_visible()
    want = at.attend(Q, K, K, mask=mask)
    found = compute(mask=seen)
    assert torch.equal(found.out, want.out)
    assert torch.equal(found.stats.visible, want.stats.visible)


def test_its_count_is_used_again():
    seen = Visibility.of_mask(at.causal, EXTENT).with_visible()
    assert resolve(Q, K, K, Options(mask=seen)).seen is seen


@pytest.mark.parametrize(
    "bias", [None, torch.randn(5, 7).masked_fill(torch.rand(5, 7) > 0.6, -torch.inf)]
)
def test_what_it_adds_is_the_bias_and_a_bias_may_hide_more(bias):  # fmt: skip
    added = torch.randn(1, 1, 5, 7).masked_fill(torch.rand(1, 1, 5, 7) > 0.7, -torch.inf)
    seen = Visibility(EXTENT, added=added).with_visible()
    found, want = compute(mask=seen, bias=bias), at.attend(Q, K, K, mask=added, bias=bias)
    assert torch.equal(found.out, want.out)
    assert torch.equal(found.stats.visible, want.stats.visible)


def test_a_float_mask_passes_gradients_on():
    added = torch.randn(1, 1, 5, 7, requires_grad=True)
    compute(mask=Visibility(EXTENT, added=added)).out.square().sum().backward()
    grad, added.grad = added.grad, None
    at.attend(Q, K, K, mask=added).out.square().sum().backward()
    torch.testing.assert_close(grad, added.grad)


def test_weights_that_decay_are_causal():
    seen = Visibility.of_mask(at.full, EXTENT)
    found = compute(mask=seen, weights=at.weights.Decay(0.5))
    torch.testing.assert_close(found.out, at.attend(Q, K, K, weights=at.weights.Decay(0.5)).out)


def test_one_of_other_sizes_is_refused():
    seen = Visibility.of_mask(at.full, EXTENT._replace(keys=6))
    rule = r"mask must be for \[B,H,Q,K\] = \[2, 4, 5, 7\], got \[2, 4, 5, 6\]"
    with pytest.raises(ArgumentError, match=rule):
        resolve(Q, K, K, Options(mask=seen))
