"""How much of the logits depends on position alone, by a least-squares fit of distances."""

from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from attentropy.analysis._rows import resolved, rows
from attentropy.core.call import Call
from attentropy.core.errors import UnsupportedError
from attentropy.core.resolve import AttendOptions

STEPS = 200


def positional_share(q: Tensor, k: Tensor, **options: Unpack[AttendOptions]) -> Tensor:
    """The share of the variance of logits within rows that distance alone explains, [H].

    Fits s_ij = a_i + m_(j-i) by least squares over visible keys: one number for each row, which
    softmax ignores, and one for each distance. The share is 1 - sum (s - a - m)^2 / sum (s - mean
    of the row)^2: 1 for a pure relative bias, about distances / logits for content without
    positions, NaN where logits do not vary. Masks must show an interval of keys to each query.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        options: mask, score, scale, bias, softcap and sink, as in attend().
    """
    band = _Band.of(resolved(q, k, **options))
    square, by_row, by_place = _sums(q, k, options)
    size = band.size()
    alone = by_row / size.clamp(min=1)
    within = square - (by_row * alone).sum((0, 2))
    m = _solved(band, by_place - band.spread(alone))
    explained = (m * (by_place - band.spread(alone))).sum(-1)
    share = explained / within.masked_fill(within <= 1e-12 * square, torch.nan)
    return share.clamp(0.0, 1.0)


def _sums(q: Tensor, k: Tensor, options: AttendOptions) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of squares [H], and of logits over each row [B,H,Q] and each distance [H,P]."""
    batch, heads, queries, _ = q.shape
    square = q.new_zeros(heads, dtype=torch.float64)
    by_row = square.new_zeros(batch, heads, queries)
    by_place = square.new_zeros(heads, queries + k.shape[2] - 1)
    key = torch.arange(k.shape[2], device=q.device)
    for part in rows(q, k, share=2, **options):
        s = part.logits.masked_fill(part.logits.isneginf(), 0.0)
        row = torch.arange(part.queries.start, part.queries.stop, device=q.device)
        place = key - row[:, None] + queries - 1
        square += s.square().sum((1, 2))
        by_row[part.entry, :, part.queries] = s.sum(-1)
        by_place.index_add_(1, place.flatten(), s.flatten(1))
    return square, by_row, by_place


class _Band(NamedTuple):
    """First and one past the last visible place of each row [B,H,Q], a place being a distance."""

    lo: Tensor
    hi: Tensor
    places: int

    @classmethod
    def of(cls, call: Call) -> "_Band":
        seen = call.seen
        hidden = seen.added is not None and bool(seen.added.isneginf().any())
        if seen.table is not None or seen.predicate is not None or hidden:
            raise UnsupportedError(
                "positional_share takes masks that show an interval of keys to each query"
            )
        shape, keys = call.q.shape[:3], call.k.shape[2]
        first = torch.zeros(shape, dtype=torch.int64, device=call.q.device)
        lo = first if seen.lo is None else seen.lo.long().expand(shape)
        lo = lo + shape[2] - 1 - torch.arange(shape[2], device=call.q.device)
        return cls(lo, lo + seen.visible, shape[2] + keys - 1)

    def size(self) -> Tensor:
        """Visible keys of each row, float64."""
        return (self.hi - self.lo).double()

    def sum(self, m_HP: Tensor) -> Tensor:
        """The sum of m over the visible places of each row, [B,H,Q]."""
        total = torch.nn.functional.pad(m_HP.cumsum(-1), (1, 0)).expand(len(self.lo), -1, -1)
        return total.gather(2, self.hi) - total.gather(2, self.lo)

    def spread(self, a_BHQ: Tensor) -> Tensor:
        """The sum over rows of a, at each place that the row shows, [H,P]."""
        ends = a_BHQ.new_zeros(*a_BHQ.shape[:2], self.places + 1)
        ends.scatter_add_(2, self.lo, a_BHQ).scatter_add_(2, self.hi, -a_BHQ)
        return ends.sum(0).cumsum(-1)[:, :-1]


def _solved(band: _Band, wanted: Tensor) -> Tensor:
    """m with (D - C^T N^-1 C) m = wanted, by conjugate gradients scaled by D."""
    size = band.size()
    rows_seen = band.spread(torch.ones_like(size))
    weight = 1 / rows_seen.clamp(min=1)

    def apply(m: Tensor) -> Tensor:
        return rows_seen * m - band.spread(band.sum(m) / size.clamp(min=1))

    m, r = torch.zeros_like(wanted), wanted.clone()
    d = z = weight * r
    rz = (r * z).sum(-1, keepdim=True)
    first = rz.clamp(min=1e-300)
    for _ in range(STEPS):
        if bool((rz <= 1e-24 * first).all()):
            break
        ad = apply(d)
        step = rz / (d * ad).sum(-1, keepdim=True).clamp(min=1e-300)
        m, r = m + step * d, r - step * ad
        z = weight * r
        last, rz = rz, (r * z).sum(-1, keepdim=True)
        d = z + rz / last.clamp(min=1e-300) * d
    return m
