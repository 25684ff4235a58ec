"""Models that call torch's scaled_dot_product_attention, nn.MultiheadAttention among them.

The attribute `torch.nn.functional.scaled_dot_product_attention` is replaced while anything is
watched or steered; a call is taken over if the innermost running module is, and passed on
otherwise. Its is_causal is aligned to the start: query i sees keys up to i, whatever K is.
"""

import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.core.masks import Extent
from attentropy.core.resolve import FLOATS, Options
from attentropy.models.intercept import early, registry, repeated, tracking, verify
from attentropy.models.intercept.compute import (
    Intercepted,
    ModelInputs,
    answer,
    ask,
    attending,
    is_cross,
    pass_by,
)
from attentropy.models.intercept.repeated import QKV, Known
from attentropy.models.intercept.tracking import STATE, Tracked, computing
from attentropy.models.record.model_masks import (
    ModelMask,
    causal_from_end,
    causal_from_start,
    everything,
    from_table,
)

TORCHS_OWN = (
    "torch.distributed.tensor.experimental._context_parallel._attention",
    "torch.distributed.tensor.experimental._attention",  # before torch 2.10
)
SPREAD = (
    "context_parallel of torch, where a rank has only some keys; "
    "at.steer(model, context_parallel=...) and at.ring_attend are exact"
)
UNUSABLE = "scaled_dot_product_attention of tensors that attend() does not take"


def hold(kinds: frozenset[type[nn.Module]] = frozenset()) -> registry.Undo:
    """Take over calls by tracked modules, until the function returned is called.

    Args:
        kinds: names that the code of these classes has bound to it are taken over as well.
    """
    held = registry.hold("F.scaled_dot_product_attention", _apply)
    return registry.together(held, early.hold(kinds, TAKEN))


def _apply() -> registry.Undo:
    taken = _taken_over(F.scaled_dot_product_attention)
    return registry.together(
        registry.replace(F, "scaled_dot_product_attention", taken),
        registry.replace(torch.backends.mha, "get_fastpath_enabled", _without_fast_path()),
        registry.replace(nn.TransformerEncoder, "forward", _as_nested(_PLAIN_ENCODER)),
        registry.replace(nn.MultiheadAttention, "forward", _traceable(_PLAIN_MULTIHEAD)),
    )


def _without_fast_path() -> Callable[[], bool]:
    """The fast path of MultiheadAttention and TransformerEncoder calls no Python."""
    original = torch.backends.mha.get_fastpath_enabled

    def get_fastpath_enabled() -> bool:
        return STATE.computing and original()

    return get_fastpath_enabled


_PLAIN_ENCODER = nn.TransformerEncoder.forward
_PLAIN_MULTIHEAD = nn.MultiheadAttention.forward


def _traceable(original: Callable[..., Any]) -> Callable[..., Any]:
    """The forward of nn.MultiheadAttention, which torch.compile follows into its attention.

    The compiler takes F.multi_head_attention_forward for one operator, and does not look inside. It
    knows the function by its identity, so that a copy of it is followed as other code is.
    """
    functional = ModuleType(F.__name__)
    vars(functional).update(vars(F))
    vars(functional)["multi_head_attention_forward"] = _copy(F.multi_head_attention_forward)
    followed = _copy(original, F=functional)

    @wraps(original)
    def forward(self: nn.MultiheadAttention, *args: Any, **kwargs: Any) -> Any:
        called = followed if torch.compiler.is_compiling() else original
        return called(self, *args, **kwargs)

    return forward


def _copy(function: Any, **names: Any) -> Callable[..., Any]:
    """The same function with other globals of some names."""
    known = {**function.__globals__, **names} if names else function.__globals__
    copy = FunctionType(function.__code__, known, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _as_nested(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An encoder whose padded tokens come out as its fast path has them.

    It leaves padding out in nested tensors, and fills it in at the end.
    """

    @wraps(original)
    def forward(
        self: nn.TransformerEncoder,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        out = original(self, src, mask, src_key_padding_mask, is_causal)
        if src_key_padding_mask is None or STATE.computing or not _may_nest(self, src):
            return out
        with computing(), torch.no_grad():
            own = original(self, src, mask, src_key_padding_mask, is_causal)
        return torch.where((src_key_padding_mask != 0)[..., None], own, out)

    return forward


def _may_nest(encoder: nn.TransformerEncoder, src: Tensor) -> bool:
    if not encoder.use_nested_tensor or encoder.training or torch.compiler.is_compiling():
        return False
    given = (src, *encoder.parameters())
    return src.dim() == 3 and not (torch.is_grad_enabled() and any(x.requires_grad for x in given))


def _taken_over(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def scaled_dot_product_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        **more: Any,
    ) -> Tensor:
        module = None if STATE.computing else attending()
        attached = tracking.tracked(module)
        if module is None or attached is None or not _is_touched(attached):
            with nullcontext() if STATE.census is None else computing():
                return original(
                    query, key, value, attn_mask, dropout_p, is_causal,
                    scale=scale, enable_gqa=enable_gqa, **more,
                )  # fmt: skip
        if _is_spread(original, query):
            pass_by(module, SPREAD)
            return original(
                query, key, value, attn_mask, dropout_p, is_causal,
                scale=scale, enable_gqa=enable_gqa, **more,
            )  # fmt: skip
        kind = None
        if not dropout_p and not more:
            options = is_causal, scale, enable_gqa
            kind, out = _again(module, attached, (query, key, value), attn_mask, options)
            if out is not None:
                return out

        def own(dropout: float = dropout_p) -> Tensor:
            return original(
                query, key, value, attn_mask, dropout, is_causal,
                scale=scale, enable_gqa=enable_gqa, **more,
            )  # fmt: skip

        if more or not _usable(query, key, value):
            pass_by(module, UNUSABLE)
            return own()

        lead = _lead(query, key, value, grouped=enable_gqa)

        def read() -> ModelInputs:
            q, k, v = (_four(x) for x in _spread(query, key, value, grouped=enable_gqa))
            extent = Extent(q.shape[0], q.shape[1], q.shape[2], k.shape[2], q.device)
            mask = _mask(module, extent, _four_mask(attn_mask, query, lead), is_causal=is_causal)
            factor = q.shape[3] ** -0.5 if scale is None else scale
            return ModelInputs(q, k, v, Options(scale=factor, dropout=dropout_p), mask)

        made = Intercepted(
            way=("sdpa", verify.sizes(query, key, value), verify.form(attn_mask), is_causal),
            read=read,
            own=own,
            output=_four,
            result=lambda out, _: out.reshape(*lead, query.shape[-2], value.shape[-1]),
            dropout=dropout_p,
        )
        result: Tensor = answer(module, made)
        if kind is not None and repeated.is_due(module, kind):
            with suppress(Exception), computing():  # nothing of ours may end a user's forward pass
                repeated.learn(module, kind, made.way, ask(module, made.read()))
        return result

    return scaled_dot_product_attention


def _again(
    module: nn.Module,
    attached: Tracked,
    tensors: QKV,
    mask: Tensor | None,
    options: tuple[bool, float | None, bool],
) -> tuple[Hashable | None, Tensor | None]:
    """What tells the call from others, and its output if such calls are known; else None."""
    kind = repeated.kind_of(attached, *tensors, mask, options)
    if attached.owner is None or kind is None:
        return kind, None
    known = repeated.find(attached.owner, kind)
    if known is None:
        return kind, None
    try:
        seen = _mask_again(module, known, mask, is_causal=options[0])
        return kind, repeated.answer(attached.owner, known, seen, tensors)
    except Exception:  # nothing of ours may end a user's forward pass: the long way says what it is
        return kind, None


def _mask_again(
    module: nn.Module, known: Known, mask: Tensor | None, *, is_causal: bool
) -> ModelMask:
    """What the queries of a known call see; without a mask it follows from what is known."""
    if mask is not None:
        return _mask(module, known.extent, mask, is_causal=is_causal)
    cross = _from_elsewhere(module, known.extent, is_causal=is_causal)
    seen = known.unmasked.get(cross)
    if seen is None:
        seen = known.unmasked[cross] = _unmasked(known.extent, cross=cross, is_causal=is_causal)
    return seen


_PLAIN = F.scaled_dot_product_attention
TAKEN = {id(_PLAIN): (_PLAIN, _taken_over(_PLAIN))}
"""What names that are bound early are replaced by."""


def _lead(query: Tensor, key: Tensor, value: Tensor, *, grouped: bool) -> tuple[int, ...]:
    """Sizes of the output before queries: torch broadcasts those of all three."""
    if grouped or query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        return tuple(query.shape[:-2])
    return tuple(torch.broadcast_shapes(*(x.shape[:-2] for x in (query, key, value))))


def _spread(query: Tensor, key: Tensor, value: Tensor, *, grouped: bool) -> Iterator[Tensor]:
    """The same with equal sizes before queries and keys, heads apart if they are grouped."""
    lead = _lead(query, key, value, grouped=grouped)
    for x in (query, key, value):
        yield x if grouped or x.shape[:-2] == lead else x.expand(*lead, *x.shape[-2:])


def _is_touched(attached: Tracked) -> bool:
    """Is the running call of a module recorded or steered?"""
    if attached.changes or attached.ring is not None:
        return True
    return attached.owner is not None and attached.owner.recorder.wants()


def _is_spread(original: Callable[..., Any], query: Tensor) -> bool:
    """Does torch's own context parallelism spread the call over ranks?

    It replaces the function, and gives what it calls tensors of a mesh: whichever came first.
    """
    for name in TORCHS_OWN:
        home = sys.modules.get(name)
        if home is not None and original in getattr(home, "_replaced_functions", ()):
            return True
    return type(query) is not Tensor and hasattr(query, "device_mesh")


def _usable(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Plain dense tensors of one type."""
    if query.dim() < 2 or query.dtype not in FLOATS or query.is_nested:
        return False
    same = query.dtype == key.dtype == value.dtype and key.dim() == query.dim() == value.dim()
    return same and key.shape[-2] > 0 and query.numel() > 0


def _four(x: Tensor) -> Tensor:
    """[..., N, D] as [B,H,N,D]; without a dimension for heads there is one head."""
    if x.dim() == 4:
        return x
    if x.dim() < 4:
        return x[None, None] if x.dim() == 2 else x[:, None]
    return x.flatten(0, -4)


def _mask(module: nn.Module, extent: Extent, mask: Tensor | None, *, is_causal: bool) -> ModelMask:
    if mask is not None:
        return from_table(mask, extent, cross=is_cross(module, extent))
    cross = _from_elsewhere(module, extent, is_causal=is_causal)
    return _unmasked(extent, cross=cross, is_causal=is_causal)


def _from_elsewhere(module: nn.Module, extent: Extent, *, is_causal: bool) -> bool:
    """Cross-attention; of a causal call only where torch's own layer is given two inputs."""
    if is_causal and not isinstance(module, nn.MultiheadAttention):
        return False
    return is_cross(module, extent)


def _unmasked(extent: Extent, *, cross: bool, is_causal: bool) -> ModelMask:
    if not is_causal:
        return everything(extent, cross=cross)
    if cross:
        return replace(causal_from_start(extent), cross=True, positions=None, step=False, notes={})
    return (causal_from_end if extent.queries == extent.keys else causal_from_start)(extent)


def _four_mask(mask: Tensor | None, query: Tensor, lead: tuple[int, ...]) -> Tensor | None:
    """A mask that broadcasts to [..., Q, K], for queries flattened to four dimensions."""
    if mask is None or query.dim() == 4 or mask.dim() < 3:
        return mask
    if query.dim() == 3:
        return mask[:, None]
    return mask.expand(*lead, *mask.shape[-2:]).flatten(0, -4)
