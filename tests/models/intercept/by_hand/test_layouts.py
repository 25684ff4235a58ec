"""Logits of any shape as rows [B,H,Q,K], and back."""

import pytest
import torch
from torch import nn

from attentropy.models.intercept.by_hand.layouts import layout_of


class Heads(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.num_heads = count


@pytest.mark.parametrize(
    ("shape", "dim", "heads", "want", "plain"),
    [
        ((2, 3, 4, 5), -1, 3, (2, 3, 4, 5), True),
        ((2, 4, 3, 5), -1, 3, (2, 3, 4, 5), True),
        ((2, 3, 4, 5), -2, 3, (2, 3, 5, 4), True),
        ((2, 3, 4, 5), -1, 7, (2, 3, 4, 5), True),
        ((2, 5, 3, 5), -1, None, (2, 3, 5, 5), True),
        ((2, 5, 5, 5), -1, None, (2, 5, 5, 5), True),
        ((2, 3, 5, 5), -1, None, (2, 3, 5, 5), True),
        ((6, 4, 5), -1, 3, (2, 3, 4, 5), True),
        ((6, 4, 5), 1, 3, (2, 3, 5, 4), True),
        ((7, 4, 5), -1, 3, (7, 1, 4, 5), True),
        ((4, 5), -1, 3, (1, 1, 4, 5), True),
        ((2, 3, 6, 4, 5), -1, 3, (2, 3, 24, 5), False),
        ((2, 6, 3, 4, 5), -1, 3, (2, 3, 24, 5), False),
    ],
)
def test_shapes(shape, dim, heads, want, plain):
    x = torch.randn(shape)
    layout = layout_of(Heads(heads), x, dim)
    rows = layout.rows(x)
    assert tuple(rows.shape) == layout.shape == want
    assert layout.is_plain == plain
    assert torch.equal(layout.back(rows), x)
    sums = x.double().softmax(dim).square().sum(dim).sort()
    torch.testing.assert_close(
        rows.double().softmax(-1).square().sum(-1).flatten().sort().values,
        sums.values.flatten().sort().values,
    )
