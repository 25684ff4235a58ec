"""How many keys does each row see? Intervals are subtracted; anything else is counted in slices."""

import torch
from torch import Tensor

from attentropy.core.masks import Extent, Mask, Where

SLICE = 1 << 22


def count(
    extent: Extent,
    *,
    lo: Tensor | None = None,
    hi: Tensor | None = None,
    mask: Tensor | None = None,
    predicate: Mask | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Visible keys of each row, int64, broadcastable to [B,H,Q]; arguments as in Call."""
    if mask is None and predicate is None and bias is None:
        return _span(extent, lo, hi)
    where = extent.where()
    counts = []
    first = 0
    for q in where.q.flatten().split(max(1, SLICE // max(1, extent.keys))):
        rows = slice(first, first + len(q))
        first += len(q)
        part = where._replace(q=q.view(1, 1, -1, 1))
        seen = _tables(part, lo=lo, hi=hi, mask=mask, bias=bias, rows=rows)
        if predicate is not None:
            seen = seen & predicate.predicate(part)
        counts.append(seen.sum(-1))
    return torch.cat(counts, 2)


def _span(extent: Extent, lo: Tensor | None, hi: Tensor | None) -> Tensor:
    shape = (1, 1, extent.queries)
    if lo is None and hi is None:
        return torch.full(shape, extent.keys, device=extent.device)
    last: Tensor | int = extent.keys if hi is None else hi.long()
    span = last if lo is None else (last - lo.long()).clamp(min=0)
    assert isinstance(span, Tensor)
    return span.expand(*span.shape[:2], extent.queries)


def _tables(
    where: Where,
    *,
    lo: Tensor | None,
    hi: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    rows: slice,
) -> Tensor:
    """Visible as far as intervals and tables say, for some of the rows."""
    seen = torch.ones_like(where.q * where.k, dtype=torch.bool)
    if lo is not None:
        seen = seen & (where.k >= of_rows(lo, rows)[..., None])
    if hi is not None:
        seen = seen & (where.k < of_rows(hi, rows)[..., None])
    if mask is not None:
        seen = seen & of_rows(mask, rows)
    if bias is not None:
        seen = seen & ~of_rows(bias, rows).isneginf()
    return seen


def of_rows(x: Tensor, rows: slice) -> Tensor:
    """Some queries of a tensor whose third dimension is queries, or 1."""
    return x[:, :, rows] if x.shape[2] > 1 else x
