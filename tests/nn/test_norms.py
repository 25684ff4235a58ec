"""Normalised queries and keys bound the logits."""

import torch
import torch.nn.functional as F

import attentropy as at

nn = at.nn


def test_qk_norm_bounds_logits():
    layer = nn.MultiheadAttention(32, 2, qk_norm="rms")
    _, stats = layer(1000 * torch.randn(2, 6, 32))
    assert stats.max_logit.max() <= 16**0.5 + 1e-3
    q, k = torch.randn(2, 3, 4, 16), torch.randn(2, 3, 4, 16)
    norm = nn.QKNorm(16, "layer")
    got = norm(q, k)
    torch.testing.assert_close(got[0], F.layer_norm(q, (16,), eps=1e-6))
    torch.testing.assert_close(got[1], F.layer_norm(k, (16,), eps=1e-6))
    assert norm(q.half(), k.half())[0].dtype == torch.float16
