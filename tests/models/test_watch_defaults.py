"""A model is watched and steered where it is, whatever torch has as defaults."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attentropy as at


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs = nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = self.inputs(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def watched(model, x):
    with at.watch(model) as w:
        model(x)
    return [row.entropy for row in w.heads()]


def profiles(model, x):
    with at.watch(model, keep="rows") as w:
        model(x)
    return [p.entropy for p in w.profiles(3)]


def steered(model, x, **change):
    handle = at.steer(model, **change)
    out = model(x)
    handle.undo()
    return out.tolist()


CALLS = {
    "watch": watched,
    "profiles": profiles,
    "temperature": lambda model, x: steered(model, x, temperature=[1.0, 2.0, 0.5, 1.0]),
    "scale": lambda model, x: steered(model, x, scale=0.3),
    "rule": lambda model, x: steered(model, x, scale=at.LogLengthFrom(4)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", [Plain, lambda: at.nn.MultiheadAttention(16, 4)])
@pytest.mark.parametrize("default", ["meta device", "float64"])
def test_models_keep_their_device_and_precision(name, kind, default):
    torch.manual_seed(0)
    model = kind()
    x = torch.randn(2, 12, 16)
    forward = model if kind is Plain else _First(model)
    want = CALLS[name](forward, x)
    if default == "float64":
        torch.set_default_dtype(torch.float64)
        try:
            got = CALLS[name](forward, x)
        finally:
            torch.set_default_dtype(torch.float32)
    else:
        with torch.device("meta"):
            got = CALLS[name](forward, x)
    torch.testing.assert_close(got, want)


class _First(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        out = self.layer(x)
        return out[0] if isinstance(out, tuple) else out
