"""Final logits, written once: for tiles, for chosen rows and for single pairs.

A product scale * score comes in; softcap, biases, noise and the hiding of keys follow, in place:

    s = softcap * tanh(x / softcap) + bias + relative[distance] - slope * |distance|
"""

from typing import NamedTuple

import torch
from torch import Tensor

from attentropy.core.call import Call
from attentropy.core.visibility import ALL, Span, Visibility, gathered
from attentropy.core.weights import Gumbel, Weights
from attentropy.kernels import noise

MANY = 1 << 21


class Terms(NamedTuple):
    """What makes final logits of products, for some rows and keys of a call."""

    seen: Visibility
    weights: Weights
    softcap: float | None
    bias: Tensor | None
    relative: Tensor | None
    slopes: Tensor | None
    seed: int

    @classmethod
    def of(cls, call: Call) -> "Terms":
        """The terms of a whole call, without gradients."""
        bias, relative, slopes = (
            None if x is None else x.detach() for x in (call.bias, call.relative, call.slopes)
        )
        seed = 0 if call.seed is None else int(call.seed)
        return cls(call.seen, call.weights, call.softcap, bias, relative, slopes, seed)

    def select(self, span: Span, seen: Visibility | None = None) -> "Terms":
        """The terms of some rows and keys; `seen` is theirs, where it is known already."""
        return self._replace(
            seen=self.seen.select(span) if seen is None else seen,
            bias=None if self.bias is None else span.of(self.bias),
            relative=None if self.relative is None else _of_heads(self.relative, span),
            slopes=None if self.slopes is None else self.slopes[span.heads],
        )

    def pairs(self, key: Tensor) -> "Terms":
        """The terms of one key for each row; `key` broadcasts to [B,H,Q]."""
        index = key[..., None].clamp(0, max(0, self.seen.extent.keys - 1))
        bias = None if self.bias is None else gathered(self.bias, index, self.seen.extent)
        return self._replace(seen=self.seen.pairs(key), bias=bias)


def finish(s: Tensor, terms: Terms) -> Tensor:
    """Products [B,H,R,T] become final logits in place; -inf where a key is hidden."""
    if terms.softcap is not None:
        s.div_(terms.softcap).tanh_().mul_(terms.softcap)
    if terms.bias is not None:
        s.add_(terms.bias)
    if terms.relative is not None:
        s.add_(_looked_up(terms.relative, columns(terms)))
    if terms.slopes is not None:
        s.sub_(terms.slopes.to(s.dtype).view(-1, 1, 1) * distances(terms.seen).abs())
    if isinstance(terms.weights, Gumbel):
        s.add_(noise.gumbel(terms.seed, terms.seen.where, dtype=s.dtype)).div_(terms.weights.tau)
    hide(s, terms.seen, value=-torch.inf)
    return s


def distances(seen: Visibility) -> Tensor:
    """j - i for every pair, broadcastable to [B,H,R,T]."""
    where = seen.where
    return where.k - where.position


def columns(terms: Terms) -> Tensor:
    """Columns of the relative table for every pair, broadcastable to [B,H,R,T]."""
    assert terms.relative is not None
    reach = terms.relative.shape[-1] // 2
    return distances(terms.seen).clamp(-reach, reach) + reach


def _looked_up(table: Tensor, column: Tensor) -> Tensor:
    """table[head, column] for tables [1 or H, 2R+1]."""
    if column.shape[:2] == (1, 1):
        return table[:, column[0, 0]]
    head = torch.arange(len(table), device=table.device).view(1, -1, 1, 1)
    return table[head, column]


def _of_heads(table: Tensor, span: Span) -> Tensor:
    return table[span.heads] if len(table) > 1 else table


def hide(s: Tensor, seen: Visibility, *, value: float) -> None:
    """Write `value` where a key is hidden; bounds only touch the columns that need it."""
    if not seen.hides:
        return
    scattered = seen.origin is not None and isinstance(seen.origin.keys, Tensor)
    if scattered or torch.compiler.is_compiling():  # a graph cannot look at bounds
        _fill(s, ~seen.sees(), value)
        return
    lo, hi = seen.bounds()
    count, device = s.shape[-1], s.device
    if lo is not None and (end := min(int(lo.max()), count)) > 0:
        key = torch.arange(end, device=device)
        _fill(s[..., :end], key < lo[..., None].to(device), value)
    if hi is not None and (start := int(hi.min())) < count:
        key = torch.arange(start, count, device=device)
        _fill(s[..., start:], key >= hi[..., None].to(device), value)
    if seen.table is not None:
        _fill(s, ~seen.table, value)
    if seen.predicate is not None:
        _fill(s, ~seen.predicate.predicate(seen.where), value)
    if seen.added is not None:
        _fill(s, seen.added.isneginf(), value)


def _fill(x: Tensor, where: Tensor, value: float) -> None:
    """x.masked_fill_, which takes three times as long."""
    if torch.compiler.is_compiling():
        x.masked_fill_(where, value)
    else:
        torch.where(where, x.new_tensor(value), x, out=x)


def additive_scores(q_NRH: Tensor, k_NTH: Tensor, vector_NRH: Tensor, out_NRT: Tensor) -> Tensor:
    """vector . tanh(q + k) of every pair, a few keys at a time."""
    step = max(1, MANY // max(1, q_NRH.numel()))
    for start in range(0, k_NTH.shape[1], step):
        hidden = (q_NRH[:, :, None] + k_NTH[:, None, start : start + step]).tanh_()
        out_NRT[..., start : start + step] = torch.einsum("nrth,nrh->nrt", hidden, vector_NRH)
    return out_NRT


@torch.no_grad()
def row_logits(
    call: Call,
    queries: Tensor | slice,
    *,
    keys: slice = ALL,
    seen: Visibility | None = None,
) -> Tensor:
    """Final logits of some queries with some keys, [B,H,R,T]; -inf where a key is hidden.

    Args:
        call: the call whose logits are asked for.
        queries: an index [R] or a slice.
        keys: a slice; every key if not given.
        seen: which of these keys the queries see, where it is known already.
    """
    span = Span(queries=queries, keys=keys)
    q, k, scale = wide(call.q[:, :, queries]), wide(call.k[:, :, keys]), span.of(call.scale)
    if call.additive is None:
        q = q * scale[..., None]
    batch, key_heads, _, width = k.shape
    rows = q.reshape(batch * key_heads, q.shape[1] // key_heads * q.shape[2], width)
    at = k.reshape(batch * key_heads, k.shape[2], width)
    if call.additive is None:
        s = (rows @ at.mT).view(*q.shape[:3], k.shape[2])
    else:
        vector = wide(call.additive)[None, :, None].expand(q.shape).reshape(rows.shape)
        s = additive_scores(rows, at, vector, rows.new_empty(*rows.shape[:2], at.shape[1]))
        s = s.view(*q.shape[:3], k.shape[2]).mul_(scale[..., None])
    return finish(s, _without_dropout(call).select(span, seen))


@torch.no_grad()
def pair_logits(call: Call, key: Tensor) -> Tensor:
    """Final logits of one key with each query, [B,H,Q]; -inf where it is hidden or none.

    Args:
        call: the call whose logits are asked for.
        key: the index of the key, int64, broadcastable to [B,H,Q].
    """
    q, k = wide(call.q), _keys_at(call, key)
    if call.additive is None:
        x = (q * k).sum(-1)
    else:
        x = ((q + k).tanh() * wide(call.additive)[:, None]).sum(-1)
    s = (x * call.scale)[..., None]
    return finish(s, _without_dropout(call).pairs(key))[..., 0]


def _without_dropout(call: Call) -> Terms:
    """The terms of the logits. Only noise needs the seed, which a graph cannot look at."""
    return Terms.of(call if isinstance(call.weights, Gumbel) else call._replace(seed=None))


def _keys_at(call: Call, key: Tensor) -> Tensor:
    """The key of each query, broadcastable to [B,H,Q,D]."""
    group = call.q.shape[1] // call.k.shape[1]
    index = key.clamp(0, max(0, call.k.shape[2] - 1))
    if index.shape[:2] == (1, 1):
        k = wide(call.k.index_select(2, index.flatten()))
        return k.repeat_interleave(group, 1) if group > 1 else k
    if index.shape[1] == 1:
        at = index[..., None].expand(call.k.shape[0], call.k.shape[1], -1, call.k.shape[3])
        k = wide(call.k.gather(2, at))
        return k.repeat_interleave(group, 1) if group > 1 else k
    k = wide(call.k).repeat_interleave(group, 1)
    at = index.expand(*k.shape[:2], -1)[..., None].expand(-1, -1, -1, k.shape[3])
    return k.gather(2, at)


def wide(x: Tensor) -> Tensor:
    """In float32, or float64 as it is; without gradient."""
    x = x.detach()
    return x if x.dtype == torch.float64 else x.float()
