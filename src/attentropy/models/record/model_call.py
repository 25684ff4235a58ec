"""One attention call of a model, in the terms of attend()."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attentropy.attention.attend import attend
from attentropy.attention.ring import ring_attend
from attentropy.core.results import Attended
from attentropy.core.weights import Weights
from attentropy.distributed.layouts import Spread
from attentropy.models.record.visibility import Sight

PIECE = 1 << 17  # elements; more of them leave the cache between two passes


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

    def logits_of_first(self, rows: slice) -> Tensor:
        """Logits of the first key with the queries `rows`, [B,H,R], without bias and mask."""
        scale: Any = self.scale
        if isinstance(scale, Tensor) and scale.dim() and scale.shape[-1] > 1:
            scale = scale[..., rows]
        q = _wide(_grouped(self.q[:, :, rows], self.k.shape[1]))
        x = q @ _wide(self.k[:, :, :1]).mT.unsqueeze(2)
        return self._capped(x[..., 0].flatten(1, 2).mul_(scale))

    def logits_of(self, key: Tensor | None) -> Tensor:
        """Final logits of one key with all queries, [B,H,Q]; -inf if hidden.

        `key` is [1 or B,1,1]; None is the first one.
        """
        if key is None:
            key = torch.zeros(1, 1, 1, dtype=torch.int64, device=self.q.device)
        q = _wide(_grouped(self.q, self.k.shape[1]))
        x = q.flatten(2, 3) @ _wide(self._key_at(key[:, 0])).mT
        s = self._capped(x.view(*self.q.shape[:3]) * self.scale)
        if self.bias is not None:
            bias = self.bias[(None,) * (4 - self.bias.dim())].expand(*s.shape, self.k.shape[2])
            s = s + bias.gather(-1, key.expand(s.shape)[..., None])[..., 0]
        s = self._with_float_mask(s, key)
        return s.masked_fill(~self.sight.sees(key), -torch.inf)

    def _key_at(self, place: Tensor) -> Tensor:
        """The key at `place` [1 or B,1] of each entry, [B,Hk,1,D]."""
        place = place.clamp(max=self.k.shape[2] - 1)
        if place.shape[0] == 1:
            return self.k.index_select(2, place[0])
        picked = place[:, None, :, None].expand(-1, self.k.shape[1], -1, self.k.shape[3])
        return self.k.gather(2, picked)

    def logits_before(self) -> Tensor:
        """Final logits of the key just before each query, [B,H,Q]; -inf where there is none."""
        own = self.sight.own
        assert own is not None
        before = (own - 1).clamp(0, self.k.shape[2] - 1)
        s = self._capped(self._dots(before) * self.scale)
        key = before.view(1, 1, -1)
        if self.bias is not None:
            bias = self.bias[(None,) * (4 - self.bias.dim())].expand(*s.shape, self.k.shape[2])
            s = s + bias.gather(-1, key.expand(s.shape)[..., None])[..., 0]
        s = self._with_float_mask(s, key)
        return s.masked_fill(~self.sight.sees(own.view(1, 1, -1) - 1), -torch.inf)

    def _dots(self, place: Tensor) -> Tensor:
        """q_i . k at `place` [Q] of each query, [B,H,Q]; in pieces that stay in the cache."""
        q, group = self.q, self.q.shape[1] // self.k.shape[1]
        if torch.compiler.is_compiling() or q[0].numel() <= PIECE:
            k = _wide(self.k.index_select(2, place)).repeat_interleave(group, 1)
            return (_wide(q) * k).sum(-1)
        dots = torch.empty(q.shape[:3], dtype=_wide(q[:0]).dtype, device=q.device)
        for b in range(q.shape[0]):
            for h in range(q.shape[1]):
                k_QD = _wide(self.k[b, h // group].index_select(0, place))
                torch.sum(k_QD.mul_(_wide(q[b, h])), -1, out=dots[b, h])
        return dots

    def logits_at(self, rows: Tensor) -> Tensor:
        """Final logits of the queries `rows` [R] with every key, [B,H,R,K]; -inf if hidden."""
        s = self.scores_at(rows)
        seen = self.sight.rows(rows, device=s.device)
        return s if seen is None else s.minimum(hiding(seen, dtype=s.dtype))

    def scores_at(self, rows: Tensor) -> Tensor:
        """The same in memory of its own, where hidden keys may still have their logits."""
        scale: Any = self.scale
        if isinstance(scale, Tensor):
            scale = scale[(None,) * (3 - scale.dim())]
            scale = (scale[..., rows] if scale.shape[-1] > 1 else scale)[..., None]
        q = _grouped(_wide(self.q.index_select(2, rows)) * scale, self.k.shape[1])
        s = (q.flatten(2, 3) @ _wide(self.k).mT).unflatten(2, q.shape[2:4]).flatten(1, 2)
        s = self._capped(s)
        for added in (self.bias, self._float_mask()):
            if added is not None:
                table = added[(None,) * (4 - added.dim())]
                s = s + (table[:, :, rows] if table.shape[2] > 1 else table)
        return s

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
        return s + wide.gather(-1, key.expand(s.shape)[..., None])[..., 0]


def _grouped(q_BHQD: Tensor, key_heads: int) -> Tensor:
    """[B,H,Q,D] as [B,Hk,group,Q,D]."""
    return q_BHQD.unflatten(1, (key_heads, -1))


def hiding(seen: Tensor, *, dtype: torch.dtype) -> Tensor:
    """-inf where a key is hidden: the smaller of both is several times as fast as masked_fill."""
    return torch.where(seen, torch.inf, -torch.inf).to(dtype)


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
