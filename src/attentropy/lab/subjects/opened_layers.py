"""Attention layers of the lab, with another computation between their projections.

CalledOnTorch is the same attention as a call of F.scaled_dot_product_attention; ClippedRotary has
rotary positions whose distances end at the trained length.
"""

from functools import reduce
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.attention.attend import attend
from attentropy.core.masks import Mask, causal, lookahead, lookback
from attentropy.core.results import Attended
from attentropy.core.scales import InverseSqrt
from attentropy.core.scores import ALiBi
from attentropy.nn import join
from attentropy.nn.layers.gau import GatedAttentionUnit
from attentropy.nn.layers.multihead import MultiheadAttention
from attentropy.nn.positions.encodings import DistanceBias
from attentropy.nn.positions.rotary import RotaryPositions

AttentionLayer = MultiheadAttention | GatedAttentionUnit


class Parts(NamedTuple):
    """Queries, keys and values [B,H,N,D] before positions; `gate` multiplies the output."""

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor | None = None


def parts(layer: AttentionLayer, x: Tensor) -> Parts:
    """Queries, keys and values that the layer makes of its input.

    Args:
        layer: of attentropy.nn.
        x: features [B,N,width].
    """
    if isinstance(layer, GatedAttentionUnit):
        widths = (layer.width, layer.width, layer.key_dim)
        gate, v, z = F.silu(layer.in_proj(x)).split(widths, -1)
        q, k = ((z * g + b)[:, None] for g, b in zip(layer.gain, layer.offset, strict=True))
        return Parts(q, k, v[:, None], gate)
    whole = F.linear(x, layer.in_proj_weight, layer.in_proj_bias)
    q, k, v = (
        part.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for part in whole.chunk(3, -1)
    )
    if layer.qk_norm is not None:
        q, k = layer.qk_norm(q, k)
    return Parts(q, k, v)


def joined(layer: AttentionLayer, out: Tensor, gate: Tensor | None) -> Tensor:
    """The output of the layer from that of its heads, [B,H,N,D].

    Args:
        layer: of attentropy.nn.
        out: output of the heads, [B,H,N,D].
        gate: what parts() gave.
    """
    flat = out.transpose(1, 2).flatten(2)
    projected: Tensor = layer.out_proj(flat if gate is None else gate * flat)
    return projected


class CalledOnTorch(nn.Module):
    """A layer of attentropy.nn at scale 1/sqrt d, as a call that steer() and calibrate() change."""

    def __init__(self, layer: AttentionLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """Outputs [B,N,width]; no statistics.

        Args:
            x: features [B,N,width].
        """
        q, k, v, gate = parts(self.layer, x)
        if self.layer.positions is not None:
            q, k = self.layer.positions.rotate(q), self.layer.positions.rotate(k)
        table = _table(self.layer, x.shape[1])
        only_past = self.layer.mask is not None and table is None
        out = F.scaled_dot_product_attention(q, k, v, table, is_causal=only_past)
        return joined(self.layer, out, gate), None


def _table(layer: AttentionLayer, n: int) -> Tensor | None:
    """Slopes of ALiBi as a table [H,N,N], hidden keys -inf."""
    if not isinstance(layer.positions, DistanceBias):
        return None
    bias = layer.positions.bias()
    assert isinstance(bias, ALiBi)
    at = torch.arange(n)
    away = (at[:, None] - at).abs()
    heads = 1 if isinstance(layer, GatedAttentionUnit) else layer.num_heads
    table = -bias.of_heads(heads, device=at.device)[:, None, None] * away
    return table.masked_fill(at > at[:, None], -torch.inf) if layer.mask is not None else table


class ClippedRotary(nn.Module):
    """A rotary layer that treats keys `reach` or more away as if they were at `reach`.

    No distance is new to a model trained on more than `reach` tokens, so that what is lost at
    greater lengths is lost to the number of keys. Near keys, those far behind and those far ahead
    are attended to apart and joined.

    Args:
        layer: a layer of attentropy.nn with rotary positions.
        reach: the largest distance that a query and a key may have.
    """

    def __init__(self, layer: AttentionLayer, reach: int) -> None:
        super().__init__()
        self.layer, self.reach = layer, reach

    def forward(self, x: Tensor) -> Attended:
        """Outputs [B,N,width] and statistics.

        Args:
            x: features [B,N,width].
        """
        q, k, v, gate = parts(self.layer, x)
        visible = _visible(self.layer, x.shape[1])
        q = q * _scale(self.layer, q.shape[-1], visible)[..., None]
        found = [self._near(q, k, v)]
        if x.shape[1] > self.reach:
            found.append(self._far(q, k, v, self.reach, ~lookback(self.reach)))
            if self.layer.mask is None:
                found.append(self._far(q, k, v, -self.reach, ~lookahead(self.reach)))
        out, stats = reduce(join, found)
        return Attended(joined(self.layer, out, gate), stats)

    def _near(self, q: Tensor, k: Tensor, v: Tensor) -> Attended:
        near = lookback(self.reach) & lookahead(self.reach)
        mask = near if self.layer.mask is None else near & causal
        positions = _rotary(self.layer)
        return attend(positions.rotate(q), positions.rotate(k), v, mask=mask, scale=1.0)

    def _far(self, q: Tensor, k: Tensor, v: Tensor, distance: int, mask: Mask) -> Attended:
        """Keys that the mask shows, every one of them at `distance` behind the query."""
        turned = _rotary(self.layer).rotate(q[:, :, :, None], first=distance)[..., 0, :]
        return attend(turned, k, v, mask=mask, scale=1.0)


def _visible(layer: AttentionLayer, n: int) -> Tensor:
    return torch.full((1, 1, n), n) if layer.mask is None else torch.arange(1, n + 1).view(1, 1, n)


def _scale(layer: AttentionLayer, head_dim: int, visible: Tensor) -> Tensor:
    rule = InverseSqrt() if layer.scale is None else layer.scale
    assert callable(rule)
    return rule(head_dim, visible)


def _rotary(layer: AttentionLayer) -> RotaryPositions:
    assert isinstance(layer.positions, RotaryPositions)
    return layer.positions
