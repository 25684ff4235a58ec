"""`HeadRow.causal`: no query sees a key after its own. Told from tables of every kind, exactly."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attentropy as at


class Masked(nn.Module):
    """Attention under the mask it is given: by torch's function, or by its own softmax."""

    def __init__(self, *, by_hand):
        super().__init__()
        self.by_hand, self.attention = by_hand, nn.Linear(16, 16)

    def forward(self, x, mask, is_causal=False):
        x = self.attention(x)[:, None]
        if self.by_hand:
            shown = mask if mask.dtype == torch.bool else mask == 0
            return (x @ x.mT).masked_fill(~shown, -torch.inf).softmax(-1) @ x
        return F.scaled_dot_product_attention(x, x, x, mask, is_causal=is_causal)


def table(rule, n):
    return torch.tensor([[rule(i, j) for j in range(n)] for i in range(n)])


RULES = {
    "causal": (lambda i, j: j <= i, True),
    "one key ahead": (lambda i, j: j <= i + 1, False),
    "one key ahead in one row": (lambda i, j: j <= i or (i, j) == (3, 4), False),
    "a window": (lambda i, j: i - 3 < j <= i, True),
    "a window one further": (lambda i, j: i - 3 < j <= i + 1, False),
    "with a gap": (lambda i, j: j <= i and (i - j) % 2 == 0, True),
    "with a gap, ahead": (lambda i, j: j <= i + 1 and (i + 1 - j) % 2 == 0, False),
    "everything": (lambda i, j: True, False),
}


def causal_of(model, *inputs, **options):
    with at.watch(model) as watched, torch.no_grad():
        model(*inputs, **options)
    return {row.causal for row in watched.heads()}


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("name", RULES)
def test_a_table_is_causal_if_no_key_after_the_query_is_seen(name, kind, by_hand):
    rule, want = RULES[name]
    mask = table(rule, 8)
    if kind == "float":
        mask = torch.zeros(8, 8).masked_fill(~mask, -torch.inf)
    assert causal_of(Masked(by_hand=by_hand), torch.randn(2, 8, 16), mask) == {want}


def test_the_flag_of_torch_is_believed():
    model, x = Masked(by_hand=False), torch.randn(2, 8, 16)
    assert causal_of(model, x, None, is_causal=True) == {True}
    assert causal_of(model, x, None) == {False}


@pytest.mark.parametrize(
    "name",
    [
        "causal",
        pytest.param("one key ahead in one row", marks=pytest.mark.slow),
        "with a gap, ahead",
    ],
)
def test_compiled_calls_say_the_same(name):
    rule, want = RULES[name]
    torch._dynamo.reset()
    model = Masked(by_hand=False)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with at.watch(model) as watched, torch.no_grad():
        compiled(torch.randn(2, 8, 16), table(rule, 8))
    assert {row.causal for row in watched.heads()} == {want}
