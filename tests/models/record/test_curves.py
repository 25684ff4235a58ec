"""How entropy answers to a factor on the scale, against dense weights in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attentropy as at
from attentropy.models.record.curves import CurveWatch
from attentropy.models.record.sampled import rows_to_sample

FACTORS = (0.5, 1.0, 3.0)


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
        if self.how == "sink":
            return at.attend(q, k, v, sink=torch.ones(2), mask=at.causal).out
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.how == "causal")


def want(layer, x, factor):
    """Mean entropy of each head over the sampled rows."""
    q, k, _ = (2 * part.double() for part in layer.project(x))
    s = q @ k.mT * (1 if layer.how == "hand" else 8**-0.5)
    n = x.shape[1]
    last = n
    if layer.how in ("causal", "sink"):
        s, last = s.masked_fill(~torch.ones(n, n).tril().bool(), -torch.inf), n // 8
    if layer.how == "sink":
        s = torch.cat([s, torch.ones(*s.shape[:3], 1)], -1)
    rows = rows_to_sample(last, 8) + (n - last)
    return torch.special.entr((s * factor).softmax(-1)).sum(-1)[:, :, rows].mean((0, 2))


@pytest.mark.parametrize("how", ["torch", "causal", "sink", "hand"])
@torch.no_grad()
def test_curves_are_those_of_dense_weights(how):
    layer, x = Layer(how), torch.randn(3, 40, 16)
    with CurveWatch(layer, FACTORS) as watch:
        layer(x)
    (curve,) = watch.curves.values()
    for i, factor in enumerate(FACTORS):
        torch.testing.assert_close(
            curve.mean()[:, i].double(), want(layer, x, factor), atol=1e-5, rtol=1e-5
        )
    assert 35 <= curve.keys <= 40
