"""Positions: relative where they should be, stretched as published, quiet in the state dict."""

import math

import pytest
import torch

import attentropy as at

nn = at.nn


def test_sinusoidal_is_the_formula():
    table = nn.SinusoidalPositions(0.5, base=100.0).table(3, 4, first=2, like=torch.zeros(1))
    for n in range(3):
        for i in range(2):
            angle = (n + 2) * 100.0 ** (-2 * i / 4)
            assert table[n, 2 * i].item() == pytest.approx(0.5 * math.sin(angle), abs=1e-6)
            assert table[n, 2 * i + 1].item() == pytest.approx(0.5 * math.cos(angle), abs=1e-6)


@pytest.mark.parametrize("width", [1, 5, 8])
def test_sinusoidal_of_any_width(width):
    x = torch.zeros(2, 3, width)
    assert nn.SinusoidalPositions()(x).shape == x.shape
    assert torch.equal(nn.SinusoidalPositions(0.0)(x), x)


def test_relative_bias_and_alibi_are_biases_of_attend():
    q = torch.randn(1, 2, 5, 8)
    relative = nn.RelativeBias(2, 3)
    torch.nn.init.normal_(relative.table)
    out, _ = at.attend(q, q, q, bias=relative())
    distance = (torch.arange(5) - torch.arange(5)[:, None]).clamp(-3, 3) + 3
    want, _ = at.attend(q, q, q, bias=relative.table[:, distance])
    torch.testing.assert_close(out, want)
    out, _ = at.attend(q, q, q, bias=nn.DistanceBias(at.ALiBi()).bias())
    want, _ = at.attend(q, q, q, bias=at.ALiBi())
    torch.testing.assert_close(out, want)


def test_alibi_alone_has_a_geometric_entropy():
    slope, q = 0.5, torch.zeros(1, 1, 400, 4)
    bias = nn.DistanceBias(at.ALiBi(torch.tensor([slope]))).bias()
    _, stats = at.attend(q, q, q, mask=at.causal, bias=bias)
    r = math.exp(-slope)
    want = -math.log(1 - r) - r * math.log(r) / (1 - r)
    assert stats.entropy[0, 0, -1].item() == pytest.approx(want, rel=1e-5)


def test_only_relative_bias_is_in_the_state_dict():
    assert list(nn.RelativeBias(2, 3).state_dict()) == ["table"]
    for positions in (nn.DistanceBias(at.ALiBi()), nn.RotaryPositions(), nn.SinusoidalPositions()):
        assert not positions.state_dict()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: nn.SinusoidalPositions(math.inf), "amplitude must be finite, got inf"),
        (lambda: nn.RotaryPositions(base=1.0), "base must be finite and > 1, got 1.0"),
        (lambda: nn.RotaryPositions(scaling=2.0), "scaling must be None, Interpolated"),
        (lambda: nn.RotaryPositions()(torch.zeros(1, 1, 2, 3)), "width of heads must be even"),
        (lambda: nn.NTK(0.5), "NTK: factor must be >= 1, got 0.5"),
        (lambda: nn.YaRN(2.0, 1), "YaRN: length must be >= 2, got 1"),
        (lambda: nn.YaRN(2.0, 64, fast=0.5), "YaRN: fast must be finite and > 1, got 0.5"),
        (lambda: nn.RelativeBias(2, 0), "reach must be >= 1, got 0"),
        (lambda: nn.DistanceBias(at.ALiBi(-torch.ones(1))), "slopes must be >= 0"),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises((ValueError, TypeError)) as caught:
        build()
    assert message in str(caught.value)


def test_alibi_survives_a_layer_made_on_meta():
    with torch.device("meta"):
        layer = at.nn.MultiheadAttention(16, 2, positions=at.ALiBi())
    assert layer(torch.ones(1, 5, 16, device="meta")).out.shape == (1, 5, 16)
    layer.to_empty(device="cpu")
    want = at.nn.MultiheadAttention(16, 2, positions=at.ALiBi())
    layer.load_state_dict(want.state_dict())
    x = torch.randn(1, 5, 16)
    assert torch.equal(layer(x).out, want(x).out)
