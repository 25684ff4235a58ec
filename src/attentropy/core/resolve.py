"""From the arguments of a caller to the input of a kernel: checks, masks, scales, biases.

Every message names the argument, the rule and the value.
"""

import math
from collections.abc import Iterable
from numbers import Real
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from attentropy.core.call import Call
from attentropy.core.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from attentropy.core.masks import causal, full
from attentropy.core.masks.extent import Extent, check_table, summed
from attentropy.core.masks.mask import Mask, MaskLike, as_mask
from attentropy.core.results import asked
from attentropy.core.scales import ScaleRule
from attentropy.core.scores import (
    ALiBi,
    Dot,
    Prepared,
    Relative,
    Score,
    by_distance,
    check_device,
    check_real,
)
from attentropy.core.visibility import Span, Visibility
from attentropy.core.weights import Decay, Gumbel, Kernelised, Softmax, Weights, check_weights

SMALL_MASK = 1 << 22
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_CAST = FLOATS[:3]


class Options(NamedTuple):
    """The options of attend(), by its names.

    Attributes:
        mask: which keys a query may see; a Visibility has been resolved already.
        score: how well a key matches a query.
        scale: the logit multiplier.
        weights: how logits become weights.
        bias: what is added to the logits.
        softcap: c in c * tanh(s / c).
        sink: [H], the logit of one more outcome.
        dropout: the share of weights that are dropped.
        stats: the statistics to compute, as one word or as names.
    """

    mask: MaskLike | Visibility | None = None
    score: Score | None = None
    scale: ScaleRule | float | Tensor | None = None
    weights: Weights | None = None
    bias: Tensor | Relative | ALiBi | None = None
    softcap: float | None = None
    sink: Tensor | None = None
    dropout: float = 0.0
    stats: str | Iterable[str] = "all"


class AttendOptions(TypedDict, total=False):
    """The options of attend(), typed as keywords of the functions that pass them on."""

    mask: MaskLike | None
    score: Score | None
    scale: ScaleRule | float | Tensor | None
    weights: Weights | None
    bias: Tensor | Relative | ALiBi | None
    softcap: float | None
    sink: Tensor | None
    dropout: float
    stats: str | Iterable[str]


def options_of(given: AttendOptions) -> Options:
    """Options from keywords; raises on one that attend() does not have.

    Args:
        given: options of attend() by name.
    """
    for name in given:
        if name not in Options._fields:
            raise ArgumentError("option", f"one of {sorted(Options._fields)}", repr(name))
    return Options(**given)


class Share(NamedTuple):
    """Which part of a longer sequence q and k are.

    Attributes:
        queries: Q of the whole sequence.
        keys: K of the whole sequence.
        rows: runs of its queries that q holds.
    """

    queries: int
    keys: int
    rows: tuple[range, ...]


def resolve(
    q: Tensor, k: Tensor, v: Tensor, options: Options, *, share: Share | None = None
) -> Call:
    """A checked call; raises before anything is computed.

    With a `share`, masks and biases are those of the whole sequence; the call has these queries as
    rows and all keys of the whole sequence as columns; see attentropy.distributed.parts.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D].
        v: values [B,Hk,K,Dv].
        options: those of attend().
        share: which part of a longer sequence q and k are; the whole if not given.
    """
    q, k, v = _autocast(q, k, v)
    check_tensors(q, k, v)
    weights = _weights(options)
    prepared = _prepare(q, k, options, weights, whole=share is None)
    batch, heads, queries, _ = q.shape
    sizes = (queries, k.shape[2]) if share is None else share[:2]
    extent = Extent(batch, heads, *sizes, q.device)
    seen = _visibility(options, weights, extent)
    bias, relative, slopes = _biases(options, seen.added, extent, dtype=_wide(q))
    if bias is not None and (bias is not seen.added or bias.requires_grad):
        known = seen.counted if bias is seen.added else None
        seen = seen._replace(added=bias.detach(), counted=known)
    if share is not None:
        rows = Span(queries=_index(share.rows, device=q.device))
        seen, bias = seen.select(rows), None if bias is None else rows.of(bias)
    seen = seen.with_visible()
    return Call(
        q=prepared.q,
        k=prepared.k,
        v=v,
        additive=prepared.vector,
        scale=_scale(options, q, seen.visible),
        weights=weights,
        seen=seen,
        bias=bias,
        relative=relative,
        slopes=slopes,
        softcap=check_softcap(options.softcap),
        sink=_sink(options.sink, q),
        dropout=_dropout(options.dropout),
        seed=_seed(options.dropout, weights),
        asked=asked(options.stats),
    )


def check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise unless shapes, dtypes and devices fit together.

    Args:
        q: queries.
        k: keys.
        v: values.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise ArgumentTypeError(name, "a tensor", type(x).__name__)
        shape = x.shape
        if len(shape) != 4:
            letters = "[B,H,Q,D]" if name == "q" else "[B,Hk,K,D]"
            raise ArgumentError(name, f"of shape {letters}", list(shape))
        if x.layout != torch.strided:
            raise ArgumentTypeError(f"{name}.layout", "that of a dense tensor", x.layout)
        if x.dtype not in FLOATS:
            rule = "of dtype float16, bfloat16, float32 or float64"
            raise ArgumentTypeError(f"{name}.dtype", rule, x.dtype)
        if x.dtype != q.dtype:
            raise ArgumentTypeError(f"{name}.dtype", f"that of q, {q.dtype}", x.dtype)
        if x.device != q.device:
            raise ArgumentError(f"{name}.device", f"that of q, {q.device}", x.device)
    _check_sizes(q.shape, k.shape, v.shape)


def _check_sizes(q: torch.Size, k: torch.Size, v: torch.Size) -> None:
    if (k[0], k[3]) != (q[0], q[3]) or (v[0], v[1], v[2]) != (k[0], k[1], k[2]):
        rules = (
            ("k", "batch size", k[0], q[0], "q"),
            ("v", "batch size", v[0], q[0], "q"),
            ("k", "width", k[3], q[3], "q"),
            ("v", "number of heads", v[1], k[1], "k"),
            ("v", "number of keys", v[2], k[2], "k"),
        )
        name, what, got, want, other = next(rule for rule in rules if rule[2] != rule[3])
        raise ArgumentError(f"the {what} of {name}", f"{want}, as in {other}", got)
    if k[1] == 0 or q[1] % k[1]:
        rule = f"a divisor of the number of query heads {q[1]}"
        raise ArgumentError("the number of heads of k", rule, k[1])


def _autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As scaled_dot_product_attention does, take the lower precision inside autocast.

    Layers under autocast give some of q, k, v in float32 and others in the lower precision.
    """
    if not isinstance(q, Tensor) or q.is_meta:
        return q, k, v
    kind = q.device.type
    if not torch.is_autocast_enabled(kind):
        return q, k, v
    if not all(isinstance(x, Tensor) and x.dtype in _CAST for x in (q, k, v)):
        return q, k, v
    low = torch.get_autocast_dtype(kind)
    return q.to(low), k.to(low), v.to(low)


def _weights(options: Options) -> Weights:
    weights = Softmax() if options.weights is None else options.weights
    check_weights(weights)
    kind = type(weights).__name__
    if not isinstance(weights, Softmax) and options.sink is not None:
        raise UnsupportedError(f"sink is supported by Softmax weights only, not by {kind}")
    if options.dropout and getattr(weights, "hard", kind == "Hard"):
        raise UnsupportedError("dropout is not supported with one-hot weights")
    if isinstance(weights, Kernelised | Decay):
        given = [n for n in ("scale", "bias", "softcap") if getattr(options, n) is not None]
        if _adds(options.mask):
            given.append("float mask")
        if given:
            raise UnsupportedError(f"{kind} weights have no logits and take no {given[0]}")
    return weights


def _adds(mask: MaskLike | Visibility | None) -> bool:
    """Whether a mask adds to the logits."""
    if isinstance(mask, Tensor):
        return mask.is_floating_point()
    return isinstance(mask, Mask | Visibility) and mask.added is not None


def _prepare(q: Tensor, k: Tensor, options: Options, weights: Weights, *, whole: bool) -> Prepared:
    score = Dot() if options.score is None else options.score
    check_score(score)
    if isinstance(weights, Kernelised):
        if not isinstance(score, Dot):
            raise UnsupportedError(f"Kernelised weights take the dot score only, not {score}")
        return Prepared(*weights.features(q, k, whole=whole))
    return score.prepare(q, k)


def _visibility(options: Options, weights: Weights, extent: Extent) -> Visibility:
    if isinstance(options.mask, Visibility):
        _check_extent(options.mask, extent)
        return options.mask.meet(causal) if isinstance(weights, Decay) else options.mask
    mask = full if options.mask is None else as_mask(options.mask)
    if isinstance(weights, Decay):
        mask = causal if mask is full or mask is causal else mask & causal
    return Visibility.of_mask(mask, extent)


def _check_extent(seen: Visibility, extent: Extent) -> None:
    # != and not a set: under torch.compile sizes are symbols
    if seen.extent[:4] != extent[:4] or seen.origin is not None:
        rule = f"for [B,H,Q,K] = {list(extent[:4])}"
        raise ArgumentError("mask", rule, list(seen.extent[:4]))


def _index(rows: tuple[range, ...], *, device: torch.device) -> slice | Tensor:
    """Runs of queries as one index; a single run is a slice."""
    if len(rows) == 1:
        return slice(rows[0].start, rows[0].stop)
    runs = [torch.arange(run.start, run.stop, device=device) for run in rows]
    return torch.cat(runs) if runs else slice(0, 0)


def _biases(
    options: Options, added: Tensor | None, extent: Extent, *, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Bias table (a float mask included), relative table, ALiBi slopes."""
    bias, relative, slopes = added, None, None
    match options.bias:
        case None:
            pass
        case Tensor():
            table = check_table("bias", options.bias, extent)
            if not table.is_floating_point():
                raise ArgumentTypeError("bias.dtype", "floating point", table.dtype)
            bias = table if bias is None else summed(bias, table)
        case Relative():
            relative = options.bias.rows(extent.heads)
            check_device("Relative: table", relative, extent.device)
        case ALiBi():
            slopes = options.bias.of_heads(extent.heads, device=extent.device, dtype=dtype)
            check_device("ALiBi: slopes", slopes, extent.device)
            if slopes.requires_grad and torch.is_grad_enabled():
                # kernels differentiate tables, which autograd makes of slopes
                relative = by_distance(slopes, max(extent.queries, extent.keys), dtype=dtype)
                slopes = None
        case _:
            raise ArgumentTypeError("bias", "a tensor, Relative or ALiBi", repr(options.bias))
    return bias, relative, slopes


def _scale(options: Options, q: Tensor, visible: Tensor) -> Tensor:
    """The logit multiplier, broadcastable to [B,H,Q]."""
    wide = _wide(q)
    scale: Any = options.scale
    head_dim = max(1, q.shape[3])  # without a width every score is 0, whatever the scale
    if scale is None:
        score = Dot() if options.score is None else options.score
        plain = isinstance(options.weights, Kernelised | Decay)
        scale = 1.0 if plain else score.default_scale(head_dim)
    check_scale(scale)
    if callable(scale) and not isinstance(scale, Tensor):
        scale = scale(head_dim, visible.to(wide).clamp(min=1))  # log 0 would be -inf, or NaN
        if not (_is_number(scale) or _is_tensor(scale)):
            raise ArgumentTypeError("scale", "a rule that gives a number or a tensor", repr(scale))
    if _is_number(scale):
        if not torch.compiler.is_compiling() and not math.isfinite(scale):
            raise ArgumentError("scale", "finite", scale)
        return torch.full((1, 1, 1), float(scale), dtype=wide, device=q.device)
    check_real("scale", scale)
    scale = scale.to(q.device) if scale.dim() == 0 else scale
    check_device("scale", scale, q.device)
    scale = _row_scale(scale, q).to(wide)
    # what a row that sees nothing is given does not reach its gradient, which is 0 * scale
    return scale if scale.shape[2] == 1 else torch.where(visible == 0, 0.0, scale)


def _wide(q: Tensor) -> torch.dtype:
    """The dtype that logits are made in."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def check_scale(scale: object) -> None:
    """Raise unless attend() takes it; a class of rules is not a rule.

    Args:
        scale: the argument of the caller.
    """
    if isinstance(scale, type) or not (callable(scale) or _is_number(scale) or _is_tensor(scale)):
        raise ArgumentTypeError("scale", "a scale rule, a number or a tensor", repr(scale))


def check_score(score: object) -> None:
    """Raise unless it is a score.

    Args:
        score: the argument of the caller.
    """
    if isinstance(score, type) or not hasattr(score, "prepare"):
        raise ArgumentTypeError("score", "Dot(), Cosine() or Additive(...)", repr(score))


def _is_number(x: object) -> bool:
    return isinstance(x, int | float | Real) and not isinstance(x, bool)


def _is_tensor(x: object) -> bool:
    return isinstance(x, Tensor)


def _row_scale(scale: Tensor, q: Tensor) -> Tensor:
    """[H] or a shape that broadcasts to [B,H,Q], as three dimensions."""
    rows = q.shape[:3]
    if scale.dim() == 1:
        scale = scale.view(1, -1, 1)
    scale = scale[(None,) * (3 - scale.dim())]
    # == and not `in`: under torch.compile sizes are symbols
    fits = scale.dim() == 3 and all(
        n == 1 or n == m  # noqa: PLR1714
        for n, m in zip(scale.shape, rows, strict=True)
    )
    if not fits:
        rule = f"of shape [H] or broadcastable to [B,H,Q] = {list(rows)}"
        raise ArgumentError("scale", rule, list(scale.shape))
    return scale


def check_softcap(softcap: float | None) -> float | None:
    """The cap as a float; raises unless it is positive and finite.

    Args:
        softcap: the argument of the caller; None means no cap.
    """
    if softcap is not None and not (_is_number(softcap) and 0 < softcap < math.inf):
        raise ArgumentError("softcap", "positive and finite, or None", softcap)
    return None if softcap is None else float(softcap)


def _sink(sink: Tensor | None, q: Tensor) -> Tensor | None:
    if sink is None:
        return None
    if not isinstance(sink, Tensor) or list(sink.shape) != [q.shape[1]]:
        got = list(sink.shape) if isinstance(sink, Tensor) else repr(sink)
        raise ArgumentError("sink", f"a tensor of shape [H] = [{q.shape[1]}]", got)
    check_real("sink", sink)
    check_device("sink", sink, q.device)
    return sink


def _dropout(rate: float) -> float:
    if not _is_number(rate) or not 0 <= rate < 1:
        raise ArgumentError("dropout", "a number in [0, 1)", rate)
    return float(rate)


def _seed(dropout: float, weights: Weights) -> Tensor | None:
    noisy = isinstance(weights, Gumbel)
    if not dropout and not noisy:
        return None
    generator = weights.generator if isinstance(weights, Gumbel) else None
    return torch.randint(0, 2**62, (), generator=generator, device="cpu")
