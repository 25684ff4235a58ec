"""Functions that a model's code bound early are taken over too, and put back."""

import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attentropy as at

SOURCE = """
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, softmax as soft

class Both(nn.Module):
    num_heads = 1
    def forward(self, x):
        q = x[:, None]
        q = scaled_dot_product_attention(q, q, q)
        return (soft(q @ q.mT, dim=-1) @ q)[:, 0]
"""


@pytest.fixture
def code():
    module = ModuleType("bound_early_in_a_test")
    sys.modules[module.__name__] = module
    exec(SOURCE, vars(module))
    yield module
    del sys.modules[module.__name__]


@torch.no_grad()
def test_they_are_recorded_and_put_back(code):
    model, x = nn.Sequential(code.Both()), torch.randn(2, 5, 4)
    plain = model(x)
    with at.watch(model) as w:
        assert torch.equal(model(x), plain)
        with at.watch(nn.Sequential(code.Both())) as v:
            v.model(x)
        model(x)
    assert code.soft is F.softmax
    assert code.scaled_dot_product_attention is F.scaled_dot_product_attention
    assert [(row.head_dim, row.rows) for row in w.heads()] == [(4, 20), (0, 20)]
    q = x.double()
    first = (q @ q.mT / 2).softmax(-1)
    second = ((first @ q) @ (first @ q).mT).softmax(-1)
    for row, p in zip(w.heads(), (first, second), strict=True):
        want = float(torch.special.entr(p).sum(-1).mean())
        assert row.entropy == pytest.approx(want, abs=1e-5)


@torch.no_grad()
def test_they_are_steered(code):
    model, x = nn.Sequential(code.Both()), torch.randn(2, 5, 4)
    plain = model(x)
    handle = at.steer(model, temperature=2.0)
    got = model(x)
    handle.undo()
    q = x.double()
    q = (q @ q.mT / 4).softmax(-1) @ q
    want = (q @ q.mT / 2).softmax(-1) @ q
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)
    assert torch.equal(model(x), plain)
