"""The sign of the entropy loss, its means, its targets; the z-loss."""

import math
import re

import numpy as np
import pytest
import torch

import attentropy as at

nn = at.nn


def stats_of(scale=1.0, mask=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(1, 2, 9, 4, generator=generator, dtype=torch.double) for _ in range(2))
    return at.attend(q, k, k, scale=scale, mask=mask).stats


def trained(loss, steps=200):
    """Mean entropy after minimising the loss alone over q."""
    q = torch.randn(1, 1, 8, 4, requires_grad=True)
    k = torch.randn(1, 1, 16, 4)
    optimiser = torch.optim.Adam([q], 0.1)
    for _ in range(steps):
        _, stats = at.attend(q, k, k)
        optimiser.zero_grad()
        loss(stats).backward()
        optimiser.step()
    return stats.entropy.mean().item()


def test_a_positive_coefficient_rewards_entropy():
    assert trained(nn.EntropyLoss(1.0)) == pytest.approx(math.log(16), abs=0.01)
    assert trained(nn.EntropyLoss(-1.0)) < 0.3


def test_a_target_and_a_band_are_reached():
    assert trained(nn.EntropyLoss(1.0, target=1.5)) == pytest.approx(1.5, abs=0.02)
    assert trained(nn.EntropyLoss(1.0, band=(2.5, None))) >= 2.49


def test_value_is_the_mean_over_rows_with_a_choice():
    stats = stats_of(mask=at.causal)
    want = -0.5 * stats.entropy[..., 1:].mean()
    torch.testing.assert_close(nn.EntropyLoss(0.5)(stats), want)
    band = nn.EntropyLoss(2.0, band=(0.5, 1.0))(stats)
    h = stats.entropy[..., 1:]
    miss = (0.5 - h).clamp(min=0) ** 2 + (h - 1.0).clamp(min=0) ** 2
    torch.testing.assert_close(band, 2 * miss.mean())
    target = nn.EntropyLoss(2.0, target=1.0)(stats)
    torch.testing.assert_close(target, 2 * (h - 1).square().mean())


def test_layers_are_averaged():
    layers = [stats_of(), stats_of(3.0)]
    loss = nn.EntropyLoss(1.0)
    torch.testing.assert_close(loss(layers), (loss(layers[0]) + loss(layers[1])) / 2)
    with pytest.raises(ValueError, match="stats must be of at least one layer"):
        loss([])


def test_blind_rows_cost_nothing():
    stats = stats_of(mask=torch.zeros(9, 9, dtype=torch.bool))
    assert nn.EntropyLoss(1.0)(stats).item() == 0
    assert nn.ZLoss(1.0)(stats).item() == 0


def test_gradients():
    q, k = torch.randn(2, 1, 1, 4, 3, dtype=torch.double).unbind(0)

    def run(q):
        _, stats = at.attend(q, k, k, mask=at.causal)
        losses = (nn.EntropyLoss(0.3), nn.EntropyLoss(0.3, target=0.4), nn.ZLoss(0.1))
        return tuple(loss(stats) for loss in losses)

    assert torch.autograd.gradcheck(run, (q.requires_grad_(),))


def test_z_loss_is_the_mean_square_of_lse():
    stats = stats_of()
    torch.testing.assert_close(nn.ZLoss(0.1)(stats), 0.1 * stats.lse.square().mean())


def test_label_smoothing_and_entropy_are_the_two_divergences():
    """As the docstring has it: KL(p || u) = log n - H is bounded, KL(u || p) is not."""
    n = 16
    for sharp in (1.0, 50.0):
        log_p = (sharp * torch.arange(n).double()).log_softmax(-1)
        p = log_p.exp()
        reward = (p * (log_p + math.log(n))).sum()
        smoothing = -(log_p + math.log(n)).mean()
        assert reward <= math.log(n) + 1e-12
        assert (smoothing > math.log(n)) == (sharp > 0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"coefficient": math.nan}, "coefficient must be finite, got nan"),
        ({"coefficient": -1.0, "target": 1.0}, "coefficient must be > 0 with target or band"),
        ({"coefficient": 1.0, "target": -1.0}, "wanted entropy must be 0 <= least <= most"),
        ({"coefficient": 1.0, "band": (2.0, 1.0)}, "wanted entropy must be 0 <= least <= most"),
        ({"coefficient": 1.0, "band": (0.0, 1.0), "target": 1.0}, "band must be None where"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        nn.EntropyLoss(**arguments)


def test_targets_above_log_n_and_other_statistics_are_refused():
    with pytest.raises(ValueError, match=r"wanted entropy must be at most log n = 2.1972"):
        nn.EntropyLoss(1.0, target=2.3)(stats_of())
    x = torch.randn(1, 1, 4, 4)
    other = at.attend(x, x, x, weights=at.ReluSquared()).stats
    with pytest.raises(TypeError, match="statistics with an entropy, got entropy None"):
        nn.EntropyLoss(1.0)(other)
    with pytest.raises(TypeError, match="statistics with an lse"):
        nn.ZLoss()(other)


def test_what_is_no_band_and_no_statistics():
    for band in (3.0, (1.0, 2.0, 3.0)):
        with pytest.raises(TypeError, match=r"EntropyLoss: band must be a pair \(least, most\)"):
            at.nn.EntropyLoss(0.1, band=band)
    for loss in (at.nn.EntropyLoss(0.1), at.nn.ZLoss()):
        with pytest.raises(TypeError, match="stats must be Stats, or several of them, got int"):
            loss(3)
        with pytest.raises(TypeError, match="stats must be statistics with an .*, got int"):
            loss([3])
    assert at.nn.EntropyLoss(np.float32(0.5)).coefficient == 0.5
