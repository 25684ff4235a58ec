"""Masks as torch.nn writes them, where True hides."""

import pytest
import torch

import attentropy as at
from attentropy.nn._masking import check_mask, from_attn_mask, from_padding


def test_hidden_becomes_visible():
    hides = torch.tensor([[False, True], [False, False]])
    assert torch.equal(from_attn_mask(hides, 2), ~hides)
    assert torch.equal(from_padding(hides), ~hides[:, None, None])


def test_numbers_to_add_stay():
    added = torch.randn(2, 2)
    assert from_attn_mask(added, 2) is added
    assert from_padding(added).shape == (2, 1, 1, 2)


def test_masks_of_each_head_are_unfolded():
    hides = torch.rand(6, 4, 5) > 0.5
    shown = from_attn_mask(hides, 3)
    assert shown.shape == (2, 3, 4, 5)
    assert torch.equal(shown[1, 2], ~hides[5])


def test_nothing_stays_nothing():
    assert from_attn_mask(None, 2) is None
    assert from_padding(None) is None
    check_mask(None)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: from_attn_mask(torch.ones(3).bool(), 2), r"attn_mask must be of shape \[Q,K\] or"),
        (
            lambda: from_attn_mask(torch.ones(3, 2, 2), 2),
            r"attn_mask must be \[B\*H,Q,K\] with H =",
        ),
        (lambda: from_attn_mask(torch.ones(2, 2).int(), 2), "attn_mask.dtype must be bool"),
        (lambda: from_padding(torch.ones(3)), r"key_padding_mask must be of shape \[B,K\], got"),
        (lambda: from_padding(torch.ones(2, 2).int()), "key_padding_mask.dtype must be bool"),
        (lambda: check_mask("causal"), "mask must be a Mask, a tensor or a function"),
        (lambda: check_mask(torch.ones(2, 2).int()), "mask must be a Mask, or a bool or float"),
    ],
)
def test_what_is_refused(check, message):
    with pytest.raises((ValueError, TypeError), match=message):
        check()


def test_what_attend_takes_is_taken():
    for mask in (at.causal, torch.ones(2, 2), torch.ones(2, 2).bool(), lambda b, h, q, k: k <= q):
        check_mask(mask)
