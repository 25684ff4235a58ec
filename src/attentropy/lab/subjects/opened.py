"""The lab's attention layers taken apart, so that another computation can stand between.

CalledOnTorch is the same attention as a call of F.scaled_dot_product_attention; ClippedRotary has
rotary positions whose distances end at the trained length.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.attention.attend import attend
from attentropy.core.masks import causal, lookahead, lookback
from attentropy.core.results import Attended, Stats
from attentropy.core.scales import InverseSqrt
from attentropy.core.scores import ALiBi
from attentropy.nn.layers.gau import GatedAttentionUnit
from attentropy.nn.layers.multihead import MultiheadAttention
from attentropy.nn.positions.encodings import DistanceBias
from attentropy.nn.positions.rotary import RotaryPositions

Layer = MultiheadAttention | GatedAttentionUnit


class Parts(NamedTuple):
    """Queries, keys and values [B,H,N,D] before positions; `gate` multiplies the output."""

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor | None = None


def parts(layer: Layer, x: Tensor) -> Parts:
    """What the layer makes of its input [B,N,width]."""
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


def joined(layer: Layer, out: Tensor, gate: Tensor | None) -> Tensor:
    """The output of the layer from that of its heads, [B,H,N,D]."""
    flat = out.transpose(1, 2).flatten(2)
    projected: Tensor = layer.out_proj(flat if gate is None else gate * flat)
    return projected


class CalledOnTorch(nn.Module):
    """A layer of attentropy.nn at scale 1/sqrt d, as a call that steer() and calibrate() change."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """Outputs [B,N,width]; no statistics."""
        q, k, v, gate = parts(self.layer, x)
        if self.layer.positions is not None:
            q, k = self.layer.positions.rotate(q), self.layer.positions.rotate(k)
        table = _table(self.layer, x.shape[1])
        only_past = self.layer.mask is not None and table is None
        out = F.scaled_dot_product_attention(q, k, v, table, is_causal=only_past)
        return joined(self.layer, out, gate), None


def _table(layer: Layer, n: int) -> Tensor | None:
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
    """A rotary layer that sees every key, those `reach` or more away as if they were at `reach`.

    No distance is new to a model trained on more than `reach` tokens, so that what is lost at
    greater lengths is lost to the number of keys. Near keys, those far before and those far behind
    are three calls, merged by their lse.
    """

    def __init__(self, layer: Layer, reach: int) -> None:
        super().__init__()
        self.layer, self.reach = layer, reach

    def forward(self, x: Tensor) -> Attended:
        """Outputs [B,N,width] and statistics, without largest logits."""
        q, k, v, gate = parts(self.layer, x)
        visible = _visible(self.layer, x.shape[1])
        q = q * _scale(self.layer, q.shape[-1], visible)[..., None]
        found = [self._near(q, k, v)]
        if x.shape[1] > self.reach:
            found.append(self._before(q, k, v, self.reach))
            if self.layer.mask is None:
                turned = self._before(q.flip(2), k.flip(2), v.flip(2), -self.reach)
                found.append(Seen(*(part.flip(2) for part in turned)))
        out, lse, entropy, collision = merged(found)
        stats = Stats(entropy, lse, None, None, collision, visible.expand(lse.shape))
        return Attended(joined(self.layer, out, gate), stats)

    def _near(self, q: Tensor, k: Tensor, v: Tensor) -> "Seen":
        near = lookback(self.reach) & lookahead(self.reach)
        mask = near if self.layer.mask is None else near & causal
        positions = _rotary(self.layer)
        return seen(attend(positions.rotate(q), positions.rotate(k), v, mask=mask, scale=1.0))

    def _before(self, q: Tensor, k: Tensor, v: Tensor, distance: int) -> "Seen":
        """Row i sees keys up to i - reach, every one of them at `distance`."""
        kept = slice(0, q.shape[2] - self.reach)
        rows = _rotary(self.layer).rotate(q[:, :, self.reach :, None], first=distance)[..., 0, :]
        far = seen(attend(rows, k[:, :, kept], v[:, :, kept], mask=causal, scale=1.0))
        blanks = (0.0, -torch.inf, 0.0, 0.0)
        return Seen(*(_led(part, self.reach, x) for part, x in zip(far, blanks, strict=True)))


class Seen(NamedTuple):
    """What some of the keys give every row."""

    out: Tensor
    lse: Tensor
    entropy: Tensor
    collision: Tensor


def seen(attended: Attended) -> Seen:
    """The mergeable part of a result of attend()."""
    out, stats = attended
    assert stats.lse is not None
    assert stats.entropy is not None
    return Seen(out, stats.lse, stats.entropy, stats.collision)


def merged(found: list[Seen]) -> Seen:
    """Shares w = softmax(lse): out = sum w out, H = sum w (H - log w), C = sum w^2 C."""
    out, each, entropy, collision = (torch.stack(parts) for parts in zip(*found, strict=True))
    lse = each.logsumexp(0)
    w = (each - lse).exp()
    own = (w * entropy).sum(0) + torch.special.entr(w).sum(0)
    return Seen((w[..., None] * out).sum(0), lse, own, (w.square() * collision).sum(0))


def _led(x: Tensor, rows: int, value: float) -> Tensor:
    """`rows` rows of a value before those of x [B,H,Q] or [B,H,Q,D]."""
    return torch.cat([x.new_full((*x.shape[:2], rows, *x.shape[3:]), value), x], 2)


def _visible(layer: Layer, n: int) -> Tensor:
    return torch.full((1, 1, n), n) if layer.mask is None else torch.arange(1, n + 1).view(1, 1, n)


def _scale(layer: Layer, head_dim: int, visible: Tensor) -> Tensor:
    rule = InverseSqrt() if layer.scale is None else layer.scale
    assert callable(rule)
    return rule(head_dim, visible)


def _rotary(layer: Layer) -> RotaryPositions:
    assert isinstance(layer.positions, RotaryPositions)
    return layer.positions
