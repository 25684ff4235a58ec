"""How entropy answers to a factor on the scale, against dense weights in float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attentropy as at
from attentropy.models.record.curves import CurveWatch
from attentropy.models.record.sampled import rows_to_sample

FACTORS = (1.0, 0.5, 3.0)


def sweep(layer, curve):
    """Asks for FACTORS one after the other."""
    heads, count = curve.factors.shape
    if count == len(FACTORS):
        return None
    return torch.full((heads,), FACTORS[count], dtype=torch.float64)


OPTIONS = {
    "sink": {"sink": torch.ones(2)},
    "softcap": {"softcap": 1.5},
    "bias": {"bias": torch.randn(1, 2, 40, 40, generator=torch.Generator().manual_seed(0))},
    "alibi": {"bias": at.ALiBi(), "softcap": 3.0, "sink": torch.zeros(2)},
}


class Layer(nn.Module):
    def __init__(self, how="torch"):
        super().__init__()
        torch.manual_seed(0)
        self.attn, self.how = nn.Linear(16, 48), how

    def project(self, x):
        return self.attn(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)

    def forward(self, x):
        q, k, v = (2 * part for part in self.project(x))
        if self.how == "hand":
            return (q @ k.mT).softmax(-1) @ v
        if self.how in OPTIONS:
            return at.attend(q, k, v, mask=at.causal, **OPTIONS[self.how]).out
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.how == "causal")


def want(layer, x, factor):
    """Mean entropy of each head over the sampled rows."""
    q, k, _ = (2 * part.double() for part in layer.project(x))
    s = q @ k.mT * (1 if layer.how == "hand" else 8**-0.5) * factor
    given, n = OPTIONS.get(layer.how, {}), x.shape[1]
    if "softcap" in given:
        s = given["softcap"] * (s / given["softcap"]).tanh()
    if layer.how == "bias":
        s = s + given["bias"]
    if layer.how == "alibi":
        slopes = torch.tensor([2.0**-4, 2.0**-8]).view(2, 1, 1)
        s = s - slopes * (torch.arange(n) - torch.arange(n)[:, None]).abs()
    last = n
    if layer.how not in ("torch", "hand"):
        s, last = s.masked_fill(~torch.ones(n, n).tril().bool(), -torch.inf), n // 8
    if "sink" in given:
        s = torch.cat([s, given["sink"].view(1, 2, 1, 1).expand(*s.shape[:3], 1)], -1)
    rows = rows_to_sample(last, 8) + (n - last)
    return torch.special.entr(s.softmax(-1)).sum(-1)[:, :, rows].mean((0, 2))


@pytest.mark.parametrize("how", ["torch", "causal", "hand", *OPTIONS])
@torch.no_grad()
def test_curves_are_those_of_dense_weights(how):
    layer, x = Layer(how), torch.randn(3, 40, 16)
    with CurveWatch(layer, sweep) as watch:
        layer(x[:2])
        layer(x[2:])
    (curve,) = watch.curves.values()
    step = 1e-4
    for i, factor in enumerate(FACTORS):
        assert curve.factors[:, i].tolist() == [factor] * 2
        torch.testing.assert_close(curve.mean()[:, i], want(layer, x, factor), atol=1e-5, rtol=1e-5)
        up, down = (want(layer, x, factor * math.exp(d)) for d in (step, -step))
        slope = (down - up) / (2 * step)
        torch.testing.assert_close(curve.fall[:, i] / curve.rows, slope, atol=1e-5, rtol=1e-4)
    assert 35 <= curve.keys <= 40 + 1e-9
    assert curve.mean().max() <= curve.most
