"""One attention call of a model, in the terms of attend()."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attentropy.attention import attend
from attentropy.layouts import Spread
from attentropy.observe.sight import Sight
from attentropy.ring import ring_attend
from attentropy.types import Attended
from attentropy.weights import Weights


@dataclass(frozen=True, eq=False, kw_only=True)
class Asked:
    """q [B,H,Q,D], k [B,Hk,K,D], v [B,Hk,K,Dv] and all that makes logits of them.

    `scale` is a number or a tensor that broadcasts to [B,H,Q]; other fields are as in attend().
    With a `spread`, q, k and v are this rank's part of a sequence, and `sight` is over all keys.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    sight: Sight
    scale: float | Tensor
    bias: Tensor | None = None
    softcap: float | None = None
    sink: Tensor | None = None
    dropout: float = 0.0
    weights: Weights | None = None
    spread: Spread | None = None

    @property
    def cross(self) -> bool:
        """Do the keys come from elsewhere?"""
        return self.sight.own is None

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """B, H, Q, K."""
        batch, heads, queries, _ = self.q.shape
        return batch, heads, queries, self.k.shape[2]

    @property
    def head_dim(self) -> int:
        """D."""
        return self.q.shape[3]

    def attend(self) -> Attended:
        """Compute it."""
        scale = self.scale
        if isinstance(scale, Tensor):
            scale = _wide(scale) if self.q.dtype != torch.float64 else scale.double()
        compute: Callable[..., Attended] = attend
        if self.spread is not None:
            compute = partial(ring_attend, group=self.spread.group, layout=self.spread.layout)
        return compute(
            self.q,
            self.k,
            self.v,
            mask=self.sight.mask,
            scale=scale,
            bias=self.bias,
            softcap=self.softcap,
            sink=self.sink,
            dropout=self.dropout,
            weights=self.weights,
        )

    def logits_of(self, key: Tensor) -> Tensor:
        """Final logit of one key per query, [B,H,Q]; `key` [1 or B,1,1 or Q], -inf if hidden."""
        q_BGRQD = _wide(_grouped(self.q, self.k.shape[1]))
        k_BGQD = _wide(self._keys_at(key.clamp(0, self.k.shape[2] - 1)[:, 0]))
        x = (q_BGRQD * k_BGQD[:, :, None]).sum(-1).flatten(1, 2)
        s = self._capped(x * self.scale)
        if self.bias is not None:
            bias = self.bias[(None,) * (4 - self.bias.dim())].expand(*s.shape, self.k.shape[2])
            s = s + bias.gather(-1, key.clamp(0).expand(s.shape)[..., None])[..., 0]
        s = self._with_float_mask(s, key)
        return s.masked_fill(~self.sight.sees(key), -torch.inf)

    def _keys_at(self, place: Tensor) -> Tensor:
        """The keys at `place` [1 or B,1 or Q], [B,Hk,1 or Q,D]."""
        if place.shape[0] == 1:
            return self.k.index_select(2, place[0])
        picked = place[:, None, :, None].expand(-1, self.k.shape[1], -1, self.k.shape[3])
        return self.k.gather(2, picked)

    def logits_at(self, rows: Tensor) -> Tensor:
        """Final logits of the queries `rows` [R] with every key, [B,H,R,K]; -inf if hidden."""
        scale: Any = self.scale
        if isinstance(scale, Tensor):
            scale = scale[(None,) * (3 - scale.dim())]
            scale = (scale[..., rows] if scale.shape[-1] > 1 else scale)[..., None]
        q = _grouped(_wide(self.q[:, :, rows]) * scale, self.k.shape[1])
        s = (q.flatten(2, 3) @ _wide(self.k).mT).unflatten(2, q.shape[2:4]).flatten(1, 2)
        s = self._capped(s)
        for added in (self.bias, self._float_mask()):
            if added is not None:
                table = added[(None,) * (4 - added.dim())]
                s = s + (table[:, :, rows] if table.shape[2] > 1 else table)
        seen = self.sight.rows(rows, device=s.device)
        return s if seen is None else s.masked_fill(~seen, -torch.inf)

    def _capped(self, s: Tensor) -> Tensor:
        return s if self.softcap is None else self.softcap * (s / self.softcap).tanh()

    def _float_mask(self) -> Tensor | None:
        mask = self.sight.mask
        return mask if isinstance(mask, Tensor) and mask.is_floating_point() else None

    def _with_float_mask(self, s: Tensor, key: Tensor) -> Tensor:
        mask = self._float_mask()
        if mask is None:
            return s
        wide = mask.expand(*s.shape, self.k.shape[2])
        return s + wide.gather(-1, key.clamp(0).expand(s.shape)[..., None])[..., 0]


def _grouped(q_BHQD: Tensor, key_heads: int) -> Tensor:
    """[B,H,Q,D] as [B,Hk,group,Q,D]."""
    return q_BHQD.unflatten(1, (key_heads, -1))


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
