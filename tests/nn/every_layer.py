"""One of every kind of layer, from [B,N,16] to Attended."""

import torch

import attentropy as at

nn = at.nn
LAYERS = {
    "multihead": lambda: nn.MultiheadAttention(16, 2, mask=at.causal),
    "grouped": lambda: nn.MultiheadAttention(
        16, 4, num_kv_heads=2, positions=nn.RotaryPositions(), qk_norm="rms", mask=at.causal
    ),
    "relative": lambda: nn.MultiheadAttention(16, 2, positions=nn.RelativeBias(2, 4)),
    "sinusoidal": lambda: nn.MultiheadAttention(16, 2, positions=nn.SinusoidalPositions()),
    "learned": lambda: nn.MultiheadAttention(16, 2, scale=nn.LearnedScale(2)),
    "ssmax": lambda: nn.MultiheadAttention(16, 2, scale=nn.SSMax(2), mask=at.causal),
    "adaptive": lambda: nn.MultiheadAttention(16, 2, scale=nn.AdaptiveScale(1.0)),
    "invariant": lambda: Threefold(nn.EntropyInvariantAttention(16, 2)),
    "additive": lambda: nn.AdditiveAttention(16, 2),
    "cosine": lambda: nn.CosineAttention(16, 2),
    "linear": lambda: nn.LinearAttention(16, 2, feature="relu", mask=at.causal),
    "gated": lambda: nn.GatedAttention(16, 2, mask=at.causal),
    "asentmax": lambda: nn.ASEntmaxAttention(16, 2, mask=at.causal),
    "selective": lambda: nn.SelectiveAttention(16, 2),
    "scale invariant": lambda: nn.ScaleInvariantAttention(16, 2),
    "differential": lambda: nn.DifferentialAttention(16, 2, mask=at.causal),
    "decay": lambda: nn.DecayAttention(16, 2),
    "gau": lambda: nn.GatedAttentionUnit(16, key_dim=8),
    "gau softmax": lambda: nn.GatedAttentionUnit(16, key_dim=8, weights=at.Softmax()),
    "gau l2": lambda: nn.GatedAttentionUnit(16, key_dim=8, weights=at.L2(at.ReluSquared())),
}


class Threefold(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x, x, x)
