"""Pointers with strides; a stride of 0 broadcasts."""

import torch

from attentropy.kernels.triton.device.views import line, view


def test_rows():
    x = torch.randn(1, 4, 1)
    assert line(x, (2, 4, 7)) == (x, 0, 1, None)
    one = torch.ones(1, 1, 1)
    assert line(one, (2, 4, 7)) == (one, 0, None, None)
    y = torch.randn(2, 4, 7)
    assert line(y, (2, 4, 7))[1:] == (28, 7, 1)


def test_pairs_and_heads():
    x = torch.randn(2, 1, 5, 6).transpose(2, 3)
    assert view(x, (2, 3, 6, 5)) == (x, 30, 0, 1, 6)
    zero = torch.zeros(1, 1, 1, 1)
    assert view(zero, (2, 3, 6, 5))[1:] == (0, 0, 0, 0)
