"""Rotary positions: relative, norm-keeping, and stretched as published."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attentropy as at

nn = at.nn


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 100))
def test_rotary_scores_depend_on_distance(i, j, shift):
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.double).unbind(0)
    turn = nn.RotaryPositions()
    here = turn(q, first=i) @ turn(k, first=j).mT
    there = turn(q, first=i + shift) @ turn(k, first=j + shift).mT
    torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-4)


def test_rotary_keeps_norms():
    x = torch.randn(2, 3, 7, 8)
    torch.testing.assert_close(nn.RotaryPositions()(x).norm(dim=-1), x.norm(dim=-1))


def test_rotary_equals_transformers():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    q, k = torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
    angle = torch.arange(7.0)[:, None] * nn.RotaryPositions().waves(8).frequencies
    cos, sin = (torch.cat([f, f], -1)[None] for f in (angle.cos(), angle.sin()))
    want_q, want_k = llama.apply_rotary_pos_emb(q, k, cos, sin)
    torch.testing.assert_close(nn.RotaryPositions()(q), want_q)
    torch.testing.assert_close(nn.RotaryPositions()(k), want_k)


@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize("factor", [1.0, 4.0, 32.0])
def test_yarn_equals_transformers(width, factor):
    rope = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=width,
        num_attention_heads=1,
        max_position_embeddings=int(2048 * factor),
        rope_parameters={
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": 2048,
            "rope_theta": 10_000.0,
        },
    )
    frequencies, attention = rope.ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    ours = nn.RotaryPositions(scaling=nn.YaRN(factor, 2048)).waves(width)
    torch.testing.assert_close(ours.frequencies, frequencies)
    assert ours.factor == pytest.approx(attention)


def test_yarn_factor_acts_on_logits_as_its_square():
    q = torch.randn(1, 1, 1, 8, dtype=torch.double)
    yarn = nn.YaRN(8.0, 64)
    turned = nn.RotaryPositions(scaling=yarn)(q)
    ratio = (turned.square().sum() / q.square().sum()).item()
    assert ratio == pytest.approx((0.1 * math.log(8) + 1) ** 2, rel=1e-6)


def test_ntk_squeezes_the_slowest_wave_by_the_factor():
    plain = nn.RotaryPositions().waves(16).frequencies
    ntk = nn.RotaryPositions(scaling=nn.NTK(4.0)).waves(16).frequencies
    assert ntk[0] == plain[0]
    assert (plain[-1] / ntk[-1]).item() == pytest.approx(4.0, rel=1e-5)
    squeezed = nn.RotaryPositions(scaling=nn.Interpolated(4.0)).waves(16).frequencies
    torch.testing.assert_close(squeezed, plain / 4)


def test_angles_are_float64_in_float64_calls():
    x = torch.ones(1, 1, 2, 6, dtype=torch.float64)
    got = nn.RotaryPositions().rotate(x, first=100_000)
    place = torch.arange(100_000, 100_002, dtype=torch.float64)[:, None]
    angle = place * 10_000.0 ** (-torch.arange(0, 6, 2, dtype=torch.float64) / 6)
    want = torch.cat([angle.cos() - angle.sin(), angle.cos() + angle.sin()], -1)
    torch.testing.assert_close(got[0, 0], want, rtol=0.0, atol=1e-10)
