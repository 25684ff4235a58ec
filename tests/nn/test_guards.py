"""qk_clip_ changes exactly the heads it must; sigma_reparam bounds spectral norms."""

import copy
import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import attentropy as at

nn = at.nn


def top(stats):
    return stats.max_logit.amax((0, 2))


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("separate", [False, True])
def test_clip_scales_logits_of_hot_heads_only(kv_heads, separate):
    layer = nn.MultiheadAttention(32, 4, num_kv_heads=kv_heads, kdim=31 if separate else None)
    torch.nn.init.normal_(layer.in_proj_bias, std=0.3)
    with torch.no_grad():
        layer.q_weight.view(4, 8, 32)[1:3].mul_(torch.tensor([5.0, 9.0]).view(2, 1, 1))
    x, key = torch.randn(2, 12, 32), torch.randn(2, 12, 31 if separate else 32)
    value = torch.randn(2, 12, 32)
    before = layer(x, key, value).stats
    limit = top(before).sort().values[1:3].mean().item()
    factor = nn.qk_clip_(layer, before, limit)
    after = layer(x, key, value).stats
    hot = top(before) > limit
    assert hot.sum() == 2
    torch.testing.assert_close(factor, torch.where(hot, limit / top(before), 1.0))
    want = torch.where(hot, torch.full_like(top(before), limit), top(before))
    torch.testing.assert_close(top(after), want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        after.entropy[:, ~hot], before.entropy[:, ~hot], rtol=1e-4, atol=1e-4
    )


def test_clip_splits_the_factor_between_queries_and_keys():
    layer = nn.MultiheadAttention(32, 4, num_kv_heads=2)
    q, k = layer.q_weight.detach().clone(), layer.k_weight.detach().clone()
    stats = layer(20 * torch.randn(2, 12, 32)).stats
    factor = nn.qk_clip_(layer, stats, top(stats).min().item() / 2)
    shared = factor.view(2, 2).amin(1).sqrt()
    torch.testing.assert_close(layer.k_weight, k * shared.repeat_interleave(8)[:, None])
    each = factor / shared.repeat_interleave(2)
    torch.testing.assert_close(layer.q_weight, q * each.repeat_interleave(8)[:, None])


def test_clip_below_the_limit_changes_nothing():
    layer = nn.MultiheadAttention(32, 4)
    before = copy.deepcopy(layer.state_dict())
    stats = layer(torch.randn(1, 5, 32)).stats
    assert nn.qk_clip_(layer, stats, 1e6).tolist() == [1.0] * 4
    for name, value in layer.state_dict().items():
        assert torch.equal(value, before[name])


def test_clip_takes_the_module_of_the_documents():
    layer = nn.EntropyInvariantAttention(16, 2, kappa=20.0)
    x = 5 * torch.randn(1, 9, 16)
    stats = layer(x, x, x).stats
    nn.qk_clip_(layer, stats, 1.0)
    assert top(layer(x, x, x).stats).max() <= 1.0001


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: (torch.nn.Linear(2, 2), 1.0), "module must be a MultiheadAttention or"),
        (lambda: (nn.MultiheadAttention(32, 4), 0.0), "limit must be finite and > 0, got 0.0"),
        (lambda: (nn.MultiheadAttention(32, 2), 1.0), "heads of stats must be 2, got 4"),
        (lambda: (nn.MultiheadAttention(32, 4, qk_norm="rms"), 1.0), "dot score without qk_norm"),
        (lambda: (nn.CosineAttention(32, 4), 1.0), "dot score without qk_norm"),
        (
            lambda: (nn.sigma_reparam(nn.MultiheadAttention(32, 4)), 1.0),
            "does not take parametrised projections",
        ),
    ],
)
def test_clip_refuses(build, message):
    stats = nn.MultiheadAttention(32, 4)(torch.randn(1, 5, 32)).stats
    module, limit = build()
    with pytest.raises((ValueError, TypeError, NotImplementedError)) as caught:
        nn.qk_clip_(module, stats, limit)
    assert message in str(caught.value)


def norms(layer):
    parts = (layer.q_weight, layer.k_weight, layer.v_weight, layer.o_weight)
    return [torch.linalg.matrix_norm(w, 2).item() for w in parts]


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2}, {"kdim": 9}])
def test_sigma_reparam_gives_every_projection_its_gain(options):
    layer = nn.sigma_reparam(nn.MultiheadAttention(32, 4, **options), gain=1.5).eval()
    assert norms(layer) == pytest.approx([1.5] * 4, rel=1e-4)


def test_sigma_reparam_can_keep_the_function():
    layer = nn.MultiheadAttention(32, 4)
    x = torch.randn(2, 5, 32)
    want = layer(x).out
    torch.testing.assert_close(
        nn.sigma_reparam(layer, gain=None)(x).out, want, rtol=1e-4, atol=1e-5
    )


def test_sigma_reparam_follows_training():
    layer = nn.sigma_reparam(nn.MultiheadAttention(16, 2))
    x = torch.randn(4, 6, 16)
    optimiser = torch.optim.SGD(
        [p for n, p in layer.named_parameters() if not n.endswith("gain")], 0.1
    )
    for _ in range(30):
        optimiser.zero_grad()
        (-layer(x).out.square().mean()).backward()
        optimiser.step()
        assert max(norms(copy.deepcopy(layer).eval())) < 1.2
    for _ in range(30):
        layer(x)
    assert norms(layer.eval()) == pytest.approx([1.0] * 4, rel=0.02)
    other = nn.sigma_reparam(nn.MultiheadAttention(16, 2))
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other.eval()(x).out, layer(x).out)


def test_sigma_reparam_under_checkpointing():
    layer = nn.sigma_reparam(nn.MultiheadAttention(16, 2))
    with torch.no_grad():
        layer.parametrizations.in_proj_weight.original.add_(torch.randn(48, 16))
    plain, x = copy.deepcopy(layer), torch.randn(2, 5, 16)
    plain(x).out.square().sum().backward()
    checkpoint(lambda u: layer(u).out, x, use_reentrant=False).square().sum().backward()
    for a, b in zip(layer.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_sigma_reparam_refuses():
    with pytest.raises(ValueError, match="a module with linear projections"):
        nn.sigma_reparam(torch.nn.ReLU())
    with pytest.raises(ValueError, match="gain must be finite and > 0, got -1.0"):
        nn.sigma_reparam(torch.nn.Linear(2, 2), gain=-1.0)


@pytest.mark.parametrize("size", [math.nan, math.inf])
def test_clip_refuses_logits_that_are_no_numbers_and_changes_nothing(size):
    layer = at.nn.MultiheadAttention(16, 2)
    before = copy.deepcopy(layer.state_dict())
    stats = at.attend(*(torch.full((1, 2, 3, 8), size) for _ in range(3))).stats
    with pytest.raises(ValueError, match="qk_clip_: the largest logits must be below inf, not NaN"):
        at.nn.qk_clip_(layer, stats, 5.0)
    assert all(torch.equal(x, before[name]) for name, x in layer.state_dict().items())


def test_clip_of_no_rows_and_of_no_statistics():
    layer = at.nn.MultiheadAttention(16, 2)
    empty = layer(torch.randn(0, 3, 16)).stats
    assert at.nn.qk_clip_(layer, empty, 5.0).tolist() == [1.0, 1.0]
    with pytest.raises(TypeError, match="qk_clip_: stats must be statistics of attention, got str"):
        at.nn.qk_clip_(layer, "stats", 5.0)
