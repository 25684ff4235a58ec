"""Kernels that are called directly are named."""

import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attentropy as at


class Attends(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


class Calls(nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, x):
        return self.kernel()(x, x, x)


def flash_attn_func(q, k, v):
    return (q @ k.mT).exp().cumsum(-1) @ v


@torch.no_grad()
def test_flash_attn_is_named(monkeypatch):
    fake = ModuleType("flash_attn")
    fake.flash_attn_func = flash_attn_func
    monkeypatch.setitem(sys.modules, "flash_attn", fake)
    model, x = (
        nn.Sequential(Attends(), Calls(lambda: fake.flash_attn_func)),
        torch.randn(1, 2, 5, 4),
    )
    plain = model(x)
    w = at.watch(model).start()
    assert torch.equal(model(x), plain)
    with pytest.warns(RuntimeWarning, match=r"nothing was recorded of 1 \(flash_attn_func\)"):
        w.stop()
    assert fake.flash_attn_func is flash_attn_func
    handle = at.steer(model, temperature=2.0)
    with pytest.warns(RuntimeWarning, match=r"left alone 1 \(flash_attn_func\)"):
        model(x)
    handle.undo()


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@torch.no_grad()
def test_flex_attention_is_named():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    before = flex.flex_attention
    model = nn.Sequential(Attends(), Calls(lambda: flex.flex_attention))
    w = at.watch(model).start()
    model(torch.randn(1, 2, 16, 16))
    with pytest.warns(RuntimeWarning, match=r"nothing was recorded of 1 \(flex_attention\)"):
        w.stop()
    assert flex.flex_attention is before
