"""What was seen of every module."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attentropy as at
from attentropy.models.record.coverage import table


class Attends(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


class ByHand(nn.Module):
    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x


class Slips(nn.Module):
    def __init__(self, *, part):
        super().__init__()
        self.soft, self.part = functools.partial(torch.softmax, dim=-1), part

    def forward(self, x):
        x = F.scaled_dot_product_attention(x, x, x) if self.part else x
        return self.soft(x @ x.mT) @ x


class Idle(nn.Module):
    def forward(self, x):
        return x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = Attends(), ByHand(), Slips(part=True), Slips(part=False)
        self.e, self.unused = Idle(), Attends()

    def forward(self, x):
        return self.e(self.d(self.c(self.b(self.a(x)))))


@torch.no_grad()
def test_every_module_is_told_of():
    model = Model()
    w = at.watch(model).start()
    model(torch.randn(1, 2, 5, 4))
    with pytest.warns(RuntimeWarning, match="nothing was recorded of c, d"):
        w.stop()
    told = {row.module: (row.status, row.why, row.calls) for row in w.coverage()}
    slipped = "a softmax bound early"
    assert told == {
        "": ("no attention", "", 0),
        "a": ("verified", "", 1),
        "b": ("beside", "attention computed by hand, observed at its softmax", 1),
        "c": ("partly", slipped, 1),
        "d": ("unseen", slipped, 0),
        "e": ("no attention", "", 0),
        "unused": ("no attention", "it did not run", 0),
    }
    assert "a softmax bound early" in str(table(w.coverage()))
