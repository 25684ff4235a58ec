"""Multi-head attention out of parts: score, scale, weights, mask, positions, norms.

>>> import torch, attentropy as at
>>> layer = at.nn.MultiheadAttention(64, 4, mask=at.causal, scale=at.LogLengthFrom(128))
>>> out, stats = layer(torch.randn(2, 10, 64))
>>> out.shape, stats.entropy.shape
(torch.Size([2, 10, 64]), torch.Size([2, 4, 10]))
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.attention.attend import attend
from attentropy.attention.ring import ring_attend
from attentropy.attention.weights import WeightedOutput, attention_weights, with_weights
from attentropy.core.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from attentropy.core.masks import causal
from attentropy.core.masks.mask import MaskLike, all_of
from attentropy.core.resolve import AttendOptions
from attentropy.core.results import Attended, HeadStats, Stats
from attentropy.core.scales import ScaleRule
from attentropy.core.scores import ALiBi, Dot, Relative, Score
from attentropy.core.weights import Weights
from attentropy.distributed.groups import Group
from attentropy.distributed.layouts import Placed, PositionRun, Runs, Spread, spread
from attentropy.distributed.reduce import reduce_heads
from attentropy.nn._checks import count, divides, parts
from attentropy.nn._masking import check_mask, from_attn_mask, from_padding
from attentropy.nn._phase import recomputing
from attentropy.nn.init import Initialise, xavier
from attentropy.nn.layers.cache import KVCache
from attentropy.nn.norms import QKNorm
from attentropy.nn.positions.encodings import Positions, as_positions
from attentropy.nn.scales.adaptive import AdaptiveScale


class MultiheadAttention(nn.Module):
    """out_proj(attend(W_Q query, W_K key, W_V value)), and the statistics of every row.

    Inputs are [B,N,embed_dim], batch first. Every layer of attentropy.nn returns Attended(out,
    stats). The state dict is that of torch.nn.MultiheadAttention: `in_proj_weight` (rows of
    queries, keys, values) or, where kdim or vdim differ from embed_dim, `q_proj_weight`,
    `k_proj_weight`, `v_proj_weight`; `in_proj_bias`; `out_proj.weight`, `out_proj.bias`. Parts
    with parameters add theirs under `score.`, `scale.`, `qk_norm.` and `positions.`.

    Args:
        embed_dim: width of inputs and output.
        num_heads: heads of queries.
        num_kv_heads: heads of keys and values; divides num_heads; equal to num_heads if not given.
        head_dim: width of queries and keys in a head; embed_dim / num_heads if not given.
        value_dim: width of values in a head; head_dim if not given.
        kdim: width of key inputs; embed_dim if not given.
        vdim: width of value inputs; embed_dim if not given.
        score: as in attend(); may be a module.
        scale: as in attend(); may be a module.
        weights: as in attend(); may be a module.
        qk_norm: "rms" or "layer", or a QKNorm.
        mask: as in attend(), for every call; True is visible.
        positions: RotaryPositions, SinusoidalPositions, RelativeBias or ALiBi.
        bias: whether the projections have a bias.
        dropout: share of weights dropped in training.
        context_parallel: a DeviceMesh of one dimension or a group whose ranks share each sequence
            in contiguous parts, or `at.zigzag.over(mesh)`; see attentropy.ring_attend.
        init: sets the initial weights, such as `score_variance(1.0)`.
        batch_first: only True.
        device: of the parameters.
        dtype: of the parameters.
    """

    # torch's encoder layers read it: False keeps them from a fast path that would bypass this layer
    _qkv_same_embed_dim = False

    in_proj_weight: Tensor
    in_proj_bias: Tensor | None
    q_proj_weight: Tensor
    k_proj_weight: Tensor
    v_proj_weight: Tensor

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        score: Score | None = None,
        scale: ScaleRule | float | None = None,
        weights: Weights | None = None,
        qk_norm: str | QKNorm | None = None,
        mask: MaskLike | None = None,
        positions: Positions | ALiBi | Relative | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        context_parallel: Group | Spread = None,
        init: Initialise = xavier,
        batch_first: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not batch_first:
            raise ArgumentError("batch_first", "True: inputs are [B,N,embed_dim]", batch_first)
        self.batch_first = True
        self._set_widths(embed_dim, num_heads, num_kv_heads, head_dim, value_dim)
        self.kdim = embed_dim if kdim is None else count("kdim", kdim)
        self.vdim = embed_dim if vdim is None else count("vdim", vdim)
        parts(score=score, scale=scale, weights=weights)
        check_mask(mask)
        self._set_parameters(bias, {"device": device, "dtype": dtype})
        self.score = Dot() if score is None else score
        self.scale = scale
        if isinstance(scale, AdaptiveScale):
            scale.fit(num_heads)
        self.weights = weights
        self.qk_norm = _norm(qk_norm, self.head_dim, device=device, dtype=dtype)
        self.mask = mask
        self.positions = as_positions(positions)
        self.dropout = _rate(dropout)
        self.spread = None if context_parallel is None else spread(context_parallel)
        init(self)

    def _set_widths(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int | None,
        head_dim: int | None,
        value_dim: int | None,
    ) -> None:
        self.embed_dim = count("embed_dim", embed_dim)
        self.num_heads = count("num_heads", num_heads)
        if head_dim is None:
            divides("num_heads", num_heads, "embed_dim", embed_dim)
        self.num_kv_heads = num_heads
        if num_kv_heads is not None:
            self.num_kv_heads = divides("num_kv_heads", num_kv_heads, "num_heads", num_heads)
        self.head_dim = embed_dim // num_heads if head_dim is None else count("head_dim", head_dim)
        self.value_dim = self.head_dim if value_dim is None else count("value_dim", value_dim)

    def _set_parameters(self, bias: bool, where: dict[str, Any]) -> None:
        rows, widths = self.projection_rows(), (self.embed_dim, self.kdim, self.vdim)
        packed = self._packed()
        names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
        for name, out, width in zip(names, rows, widths, strict=True):
            weight = None if packed else nn.Parameter(torch.empty(out, width, **where))
            self.register_parameter(name, weight)
        whole = nn.Parameter(torch.empty(sum(rows), self.embed_dim, **where)) if packed else None
        self.register_parameter("in_proj_weight", whole)
        shift = nn.Parameter(torch.empty(sum(rows), **where)) if bias else None
        self.register_parameter("in_proj_bias", shift)
        self.out_proj = nn.Linear(
            self.num_heads * self.value_dim, self.embed_dim, bias=bias, **where
        )

    def _packed(self) -> bool:
        return self.kdim == self.vdim == self.embed_dim

    def projection_rows(self) -> tuple[int, int, int]:
        """Rows of the projections of queries, keys and values."""
        keys = self.num_kv_heads * self.head_dim
        return self.num_heads * self.head_dim, keys, self.num_kv_heads * self.value_dim

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, **parts: Any) -> "MultiheadAttention":
        """The same layer with the weights of torch's, and other parts if wanted.

        Args:
            module: with batch_first=True.
            parts: arguments of MultiheadAttention to change.
        """
        if not module.batch_first:
            raise UnsupportedError("from_torch takes modules with batch_first=True only")
        if module.bias_k is not None or module.add_zero_attn:
            raise UnsupportedError("from_torch does not take add_bias_kv or add_zero_attn")
        weight = module.out_proj.weight
        layer = cls(
            module.embed_dim,
            module.num_heads,
            kdim=module.kdim,
            vdim=module.vdim,
            bias=module.in_proj_bias is not None,
            **{"dropout": module.dropout, "device": weight.device, "dtype": weight.dtype} | parts,
        )
        layer.load_state_dict(layer.state_dict() | module.state_dict())
        return layer.train(module.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: MaskLike | None = None,
        cache: KVCache | None = None,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        need_weights: bool = False,
    ) -> Attended | WeightedOutput:
        """Attend from queries to keys; queries are aligned to the end of the keys.

        `mask` has this library's meaning, **True is visible**. Under their names of torch.nn, masks
        keep torch's meaning, **True is hidden**.

        Under context parallelism inputs are this rank's part of each sequence, and masks are those
        of the whole; there is no cache.

        Args:
            query: inputs of queries [B,Q,embed_dim].
            key: inputs of keys [B,K,kdim]; the query if not given, for self attention.
            value: inputs of values [B,K,vdim]; the key if not given.
            mask: as in attend(); adds to the layer's own.
            cache: key and value are appended to it first; a frozen one is attended to as it is.
            key_padding_mask: [B,K], True hides, or numbers to add.
            attn_mask: [Q,K] or [B*H,Q,K], True hides, or numbers to add.
            is_causal: makes attention causal if no attn_mask is given; beside an attn_mask it is
                only a hint.
            need_weights: returns (out, weights) with the weights [B,H,Q,K] before dropout, which
                carry the statistics as `weights.stats`; they take O(n^2) memory.
        """
        if need_weights and self.spread is not None:
            raise UnsupportedError("context_parallel gives no weights: no rank holds all keys")
        if isinstance(self.scale, AdaptiveScale) and self.training and not recomputing():
            self.scale.advance()
        q, k, v = self._projected(query, key, value, cache)
        masks = (
            self.mask,
            mask,
            from_attn_mask(attn_mask, self.num_heads),
            from_padding(key_padding_mask),
            causal if is_causal and attn_mask is None else None,
        )
        options = self._options(query, q, k, masks)
        found = self._finished(self._attended(q, k, v, options), query)
        if not need_weights:
            return found
        return with_weights(found, attention_weights(q, k, **options))

    def _options(
        self, query: Tensor, q: Tensor, k: Tensor, masks: tuple[MaskLike | None, ...]
    ) -> AttendOptions:
        """What attend() is given besides tensors and dropout; variants add to it."""
        return {
            "mask": all_of(masks),
            "bias": None if self.positions is None else self.positions.bias(),
            "score": self.score,
            "scale": self.scale,
            "weights": self.weights,
        }

    def _placed(
        self, query: Tensor, key: Tensor | None, cache: KVCache | None
    ) -> tuple[Placed, Placed]:
        """Where queries and keys stand among all keys."""
        _check_input("query", query, self.embed_dim)
        new = 0 if key is None else key.shape[1]
        if self.spread is None:
            before = 0 if cache is None else cache.length
            whole, first = before + new, before + new - query.shape[1]
            rows = (PositionRun(first, whole),)
            return Placed(query.shape[1], rows), Placed(whole, (PositionRun(before, whole),))
        if cache is not None:
            raise UnsupportedError("context_parallel takes no cache: every rank holds new tokens")
        q, k = self.spread.shares(query.shape[1], new, device=query.device)
        shift = k.whole - q.whole
        return Placed(q.whole, tuple(range(r.start + shift, r.stop + shift) for r in q.runs)), k

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, options: AttendOptions) -> Attended:
        compute: Callable[..., Attended] = attend
        if self.spread is not None:
            compute = partial(ring_attend, group=self.spread.group, layout=self.spread.layout)
        dropout = self.dropout if self.training else 0.0
        return compute(q, k, v, dropout=dropout, **options)

    def _finished(self, attended: Attended, query: Tensor) -> Attended:
        out, stats = attended
        if isinstance(self.scale, AdaptiveScale) and self.training and not recomputing():
            self.scale.observe(self._of_all_ranks(stats))
        return Attended(self.out_proj(self._gated(out.transpose(1, 2).flatten(2), query)), stats)

    def _gated(self, heads_BQE: Tensor, query: Tensor) -> Tensor:
        """What the output projection gets: the outputs of all heads; variants change them."""
        return heads_BQE

    def _of_all_ranks(self, stats: Stats) -> Stats | HeadStats:
        return stats if self.spread is None else reduce_heads(stats, group=self.spread.group)

    def remember(self, key: Tensor, value: Tensor | None = None) -> KVCache:
        """A frozen cache of these keys and values: project a memory once, attend to it often.

        Args:
            key: inputs of keys [B,K,kdim].
            value: inputs of values [B,K,vdim]; the key if not given.
        """
        cache = KVCache()
        runs = (PositionRun(0, key.shape[1]),)
        cache.extend(*self._keys_values(key, key if value is None else value, runs))
        return cache.freeze()

    def logit_scale(self, n: int) -> Tensor:
        """The scale of each head for rows of n visible keys, [H].

        Args:
            n: visible keys of a row.
        """
        weight = self.out_proj.weight
        scale: Any = self.scale
        if scale is None:
            scale = self.score.default_scale(self.head_dim)
        if callable(scale):
            visible = torch.full((1, self.num_heads, 1), float(n), device=weight.device)
            scale = scale(self.head_dim, visible)
        given = torch.as_tensor(scale, device=weight.device, dtype=torch.float32)
        return given.expand(1, self.num_heads, 1).flatten()

    def _projected(
        self, query: Tensor, key: Tensor | None, value: Tensor | None, cache: KVCache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of all, keys and values of all heads."""
        key = query if key is None and (cache is None or not cache.frozen) else key
        rows, columns = (place.runs for place in self._placed(query, key, cache))
        if cache is not None and cache.frozen:
            if key is not None or value is not None:
                raise ArgumentError("key", "None with a frozen cache", list(query.shape))
            assert cache.k is not None
            assert cache.v is not None
            return self._queries(query, rows), cache.k, cache.v
        assert key is not None
        value = key if value is None else value
        if self.positions is None and self._packed() and key is query and value is query:
            q, k, v = self._at_once(query)
        else:
            q = self._queries(query, rows)
            k, v = self._keys_values(key, value, columns)
        return (q, k, v) if cache is None else (q, *cache.extend(k, v))

    def _at_once(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All three projections of one input in one product."""
        whole = F.linear(x, self.in_proj_weight, self.in_proj_bias)
        q, k, v = whole.split(self.projection_rows(), -1)
        heads = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        q, k, v = (_split(x, h) for x, h in zip((q, k, v), heads, strict=True))
        return (q, k, v) if self.qk_norm is None else (*self.qk_norm(q, k), v)

    def _queries(self, query: Tensor, runs: Runs) -> Tensor:
        if self.positions is not None:
            query = _at(runs, self.positions.embed, query)
        q = _split(F.linear(query, self.q_weight, self.q_bias), self.num_heads)
        q = q if self.qk_norm is None else self.qk_norm.queries(q)
        return q if self.positions is None else _at(runs, self.positions.rotate, q)

    def _keys_values(self, key: Tensor, value: Tensor, runs: Runs) -> tuple[Tensor, Tensor]:
        _check_input("key", key, self.kdim)
        _check_input("value", value, self.vdim)
        if self.positions is not None:
            key = _at(runs, self.positions.embed, key)
        k = _split(F.linear(key, self.k_weight, self.k_bias), self.num_kv_heads)
        v = _split(F.linear(value, self.v_weight, self.v_bias), self.num_kv_heads)
        k = k if self.qk_norm is None else self.qk_norm.keys(k)
        return k if self.positions is None else _at(runs, self.positions.rotate, k), v

    @property
    def q_weight(self) -> Tensor:
        """W_Q [H*D, embed_dim], a view."""
        return self._weight(0)

    @property
    def k_weight(self) -> Tensor:
        """W_K [Hk*D, kdim], a view."""
        return self._weight(1)

    @property
    def v_weight(self) -> Tensor:
        """W_V [Hk*Dv, vdim], a view."""
        return self._weight(2)

    @property
    def o_weight(self) -> Tensor:
        """The weight of the output projection."""
        return self.out_proj.weight

    @property
    def q_bias(self) -> Tensor | None:
        """The bias of queries, a view."""
        return self._bias(0)

    @property
    def k_bias(self) -> Tensor | None:
        """The bias of keys, a view."""
        return self._bias(1)

    @property
    def v_bias(self) -> Tensor | None:
        """The bias of values, a view."""
        return self._bias(2)

    @property
    def o_bias(self) -> Tensor | None:
        """The bias of the output projection."""
        return self.out_proj.bias

    def _weight(self, which: int) -> Tensor:
        if self._packed():
            return self.in_proj_weight.split(self.projection_rows())[which]
        return (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)[which]

    def _bias(self, which: int) -> Tensor | None:
        return (
            None
            if self.in_proj_bias is None
            else self.in_proj_bias.split(self.projection_rows())[which]
        )

    def extra_repr(self) -> str:
        """Widths, heads and the parts that are not modules."""
        parts = {"score": self.score, "scale": self.scale, "weights": self.weights}
        shown = [f"{n}={p}" for n, p in parts.items() if p is not None and _plain(p)]
        heads = (
            f"{self.num_heads}"
            if self.num_kv_heads == self.num_heads
            else (f"{self.num_heads}/{self.num_kv_heads}")
        )
        return ", ".join([f"{self.embed_dim}, heads={heads}, head_dim={self.head_dim}", *shown])


def _plain(part: object) -> bool:
    return not isinstance(part, nn.Module | Dot)


def _split(x_BNE: Tensor, heads: int) -> Tensor:
    """[B,N,H*D] as [B,H,N,D]."""
    return x_BNE.unflatten(-1, (heads, -1)).transpose(1, 2)


def _at(runs: Runs, hook: Callable[..., Tensor], x: Tensor) -> Tensor:
    """A hook of positions on rows that stand in runs."""
    if len(runs) < 2:
        return hook(x, first=runs[0].start if runs else 0)
    sizes = [run.stop - run.start for run in runs]
    parts = zip(x.split(sizes, -2), runs, strict=True)
    return torch.cat([hook(part, first=run.start) for part, run in parts], -2)


def _check_input(name: str, x: Tensor, width: int) -> None:
    if not isinstance(x, Tensor):
        raise ArgumentTypeError(name, "a tensor", type(x).__name__)
    if x.dim() != 3 or x.shape[-1] != width:
        raise ArgumentError(name, f"of shape [B,N,{width}]", list(x.shape))


def _rate(dropout: float) -> float:
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ArgumentError("dropout", "a number in [0, 1)", dropout)
    return float(dropout)


def _norm(norm: str | QKNorm | None, head_dim: int, **where: Any) -> QKNorm | None:
    if norm is None or isinstance(norm, QKNorm):
        return norm
    if not isinstance(norm, str):
        raise ArgumentTypeError("qk_norm", "'rms', 'layer' or a QKNorm", repr(norm))
    return QKNorm(head_dim, norm).to(**{k: v for k, v in where.items() if v is not None})
