"""The share of distance in the logits against a least-squares fit of every pair."""

import math

import pytest
import torch

import attentropy as at
from tests.analysis.maps import tensors, weights

an = at.analysis


def least_squares(s):
    """1 - residual / within, for logits [B,Q,K] with -inf hidden."""
    batch, queries, keys = s.shape
    rows, wanted, within = [], [], 0.0
    for b in range(batch):
        for i in range(queries):
            seen = (~s[b, i].isneginf()).nonzero().flatten()
            y = s[b, i, seen]
            within += (y - y.mean()).square().sum() if len(y) else 0
            for j in seen.tolist():
                x = torch.zeros(batch * queries + queries + keys - 1).double()
                x[b * queries + i] = x[batch * queries + j - i + queries - 1] = 1
                rows.append(x)
                wanted.append(s[b, i, j])
    a, y = torch.stack(rows), torch.stack(wanted)
    fit = a @ torch.linalg.lstsq(a, y[:, None], driver="gelsd").solution
    return 1 - ((fit[:, 0] - y).square().sum() / within).item()


@pytest.mark.parametrize(
    "mask", [None, at.causal, at.causal & at.lookback(4), at.padding(torch.tensor([5, 9]))]
)
def test_positional_share_is_the_least_squares_fit(mask):
    q, k, _ = tensors(queries=9, keys=9)
    p = weights(q, k, mask=mask)
    logits = (q @ k.repeat_interleave(2, 1).mT / 6**0.5).masked_fill(p == 0, -math.inf)
    share = an.positional_share(q, k, mask=mask)
    for h in range(4):
        assert share[h].item() == pytest.approx(least_squares(logits[:, h]), abs=1e-6)


@pytest.mark.parametrize("mask", [None, at.causal])
def test_positional_share_of_a_pure_bias_is_one(mask):
    q, k, _ = tensors(queries=9, keys=13)
    for bias in (at.ALiBi(), at.Relative(torch.randn(4, 31))):
        share = an.positional_share(0 * q, k, bias=bias, mask=mask)
        torch.testing.assert_close(share, torch.ones(4).double(), atol=1e-6, rtol=0)
    assert an.positional_share(0 * q, k).isnan().all()


def test_positional_share_rises_with_the_amplitude_of_positions():
    x, y = torch.randn(2, 2, 40, 32).unbind(0)
    shares = []
    for amplitude in (0.0, 0.5, 4.0):
        positions = at.nn.SinusoidalPositions(amplitude)
        shares.append(an.positional_share(positions(x)[:, None], positions(y)[:, None]).item())
    assert shares[0] < shares[1] < shares[2]
    assert shares[2] > 0.5


def test_positional_share_refuses_other_masks():
    q, k, _ = tensors()
    with pytest.raises(NotImplementedError, match="interval of keys to each query"):
        an.positional_share(q, k, mask=at.strided(2))


def test_queries_that_see_nothing_do_not_count():
    q, k, _ = tensors(queries=9, keys=5)
    whole = an.positional_share(q, k, mask=at.causal)
    seen = an.positional_share(q[:, :, 4:], k, mask=at.causal)
    torch.testing.assert_close(whole, seen)
