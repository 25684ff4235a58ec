"""Models of transformers, through its attention interface.

The function `attentropy` is registered as an attention implementation, with the mask function of
sdpa: without that the mask would silently be None. Nothing here is imported before a model of
transformers is seen.
"""

import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from attentropy.core.errors import UnsupportedError
from attentropy.core.masks import Extent
from attentropy.core.resolve import Options
from attentropy.models.intercept import registry
from attentropy.models.intercept.compute import ModelInputs, answer, is_cross
from attentropy.models.intercept.sdpa import passing
from attentropy.models.record.model_masks import (
    ModelMask,
    causal_from_end,
    everything,
    from_table,
)

NAME = "attentropy"
REFUSED = ("block_indices", "cache")


def attentropy(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sliding_window: int | None = None,
    indices: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function that transformers calls: the output [B,Q,H,Dv], and weights or None.

    Args:
        module: makes the call.
        query: [B,H,Q,D].
        key: [B,Hk,K,D].
        value: [B,Hk,K,Dv].
        attention_mask: bool, True may attend, or float, added; None means no mask, or a causal one.
        dropout: share of weights dropped.
        scaling: multiplies the logits; 1 / sqrt(D) if not given.
        is_causal: what a missing mask means; the module's own `is_causal` if not given.
        position_bias: added to the logits.
        softcap: c in c * tanh(s / c).
        s_aux: logit [H] of a learned sink.
        sliding_window: not looked at, for the window is in the mask wherever it matters.
        indices: keys [B,Q,T] that a sparse model chose.
        kwargs: `output_attentions` asks a model that was eager for its weights [B,H,Q,K]; what
            would change the result is refused, the rest is passed on.
    """
    for name in REFUSED:
        if kwargs.get(name) is not None:
            raise UnsupportedError(
                f"{type(module).__name__} passes {name!r}, which attentropy does not apply; "
                "ignoring it would give another model"
            )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    mask = _mask(module, query, key, attention_mask, causal=bool(causal))
    if indices is not None:
        mask = _sparse(mask, indices)
    keys = mask.seen.extent.keys
    if key.shape[2] > keys:
        key, value = key[:, :, :keys], value[:, :, :keys]
    if position_bias is not None and position_bias.shape[-1] > keys:
        position_bias = position_bias[..., :keys]
    options = Options(
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        bias=position_bias,
        softcap=softcap,
        sink=s_aux,
        dropout=dropout,
    )

    def plain() -> Tensor:
        given = {"position_bias": position_bias, "softcap": softcap, "s_aux": s_aux}
        given = {name: value for name, value in given.items() if value is not None}
        return _sdpa(
            module, query, key, value, attention_mask,
            dropout=dropout, scaling=scaling, is_causal=is_causal, **given, **kwargs,
        )  # fmt: skip

    given = ModelInputs(query, key, value, options, mask)
    out, maps = answer(module, given, plain=plain, maps=_wants_maps(module, kwargs))
    return out.transpose(1, 2).contiguous(), maps


def _wants_maps(module: nn.Module, kwargs: dict[str, Any]) -> bool:
    """Would the implementation that the model had return its weights, and does anyone ask?"""
    config = getattr(module, "config", None)
    if _before.get(id(config)) != "eager":
        return False
    if kwargs.get("output_attentions") or getattr(config, "output_attentions", False):
        return True
    return not torch.compiler.is_compiling() and _collected()


def _collected() -> bool:
    """Is transformers collecting weights? Its private part, for models that pass nothing on."""
    module = sys.modules.get("transformers.utils.output_capturing")
    collector = getattr(module, "_active_collector", None)
    asked = collector.get() if collector is not None else None
    return any("attentions" in name for name in asked or ())


def _sdpa(module: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
    """The same by the implementation that the model had, [B,H,Q,Dv]."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    with passing():
        out: Tensor = ALL_ATTENTION_FUNCTIONS["sdpa"](module, *args, **kwargs)[0]
    return out.transpose(1, 2)


def _mask(
    module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, *, causal: bool
) -> ModelMask:
    """Without a mask: causal if the module is, aligned to the start of a longer, static cache."""
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    extent = Extent(batch, heads, queries, keys, query.device)
    if mask is not None:
        return from_table(mask, extent, cross=is_cross(module))
    if causal and queries > 1:
        return causal_from_end(extent._replace(keys=min(queries, keys)))
    return everything(extent, cross=is_cross(module))


def _sparse(mask: ModelMask, indices: Tensor) -> ModelMask:
    """Only the keys `indices` [B,Q,T] of those that the mask shows."""
    keys = mask.seen.extent.keys
    table = torch.zeros(*indices.shape[:2], keys, dtype=torch.bool, device=indices.device)
    table = table.scatter(-1, indices.long().clamp(max=keys - 1), True)[:, None]
    return from_table(table & mask.seen.dense(), mask.seen.extent)


def is_model(model: nn.Module) -> bool:
    """Is there a transformers model in it? Imports nothing."""
    return any(is_one(module) for module in model.modules())


def is_one(module: nn.Module) -> bool:
    """Is it a transformers model itself?"""
    base = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    return base is not None and isinstance(module, base)


def tokens_of(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The attention_mask [B,N] that a transformers model is called with.

    Args:
        module: any module; others than transformers models give None.
        args: positional arguments of its forward.
        kwargs: keyword arguments of its forward.
    """
    if not is_one(module):
        return None
    mask = kwargs.get("attention_mask")
    place = _place_of_mask(type(module).forward)
    if mask is None and place is not None and place < len(args):
        mask = args[place]
    return mask if isinstance(mask, Tensor) and mask.dim() == 2 else None


@cache
def _place_of_mask(forward: Callable[..., Any]) -> int | None:
    names = [name for name in signature(forward).parameters if name != "self"]
    return names.index("attention_mask") if "attention_mask" in names else None


def register() -> None:
    """Make the function known to transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, attentropy)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def hold(model: nn.Module) -> registry.Undo:
    """Route the parts of the model that use the interface through `attentropy`; gives the undo.

    Configurations are shared between models, so each is put back when its last user is done.
    """
    register()
    return registry.together(
        *(
            registry.hold(("configuration", id(config)), partial(_take, config))
            for config in configurations(model)
        )
    )


def _take(config: Any) -> registry.Undo:
    _before[id(config)] = config._attn_implementation_internal
    config._attn_implementation_internal = NAME

    def undo() -> None:
        before = _before.pop(id(config))
        if config._attn_implementation_internal == NAME:  # else someone chose another since
            config._attn_implementation_internal = before

    return undo


_before: dict[int, str | None] = {}
"""The implementation that configurations had before, by the id of the configuration."""


def configurations(model: nn.Module) -> list[Any]:
    """Distinct configurations of the parts that take their attention from the interface."""
    from transformers import PreTrainedModel

    found, barred = {}, set()
    for module in model.modules():
        config = getattr(module, "config", None)
        if not hasattr(config, "_attn_implementation_internal"):
            continue
        if isinstance(module, PreTrainedModel) and not module._can_set_attn_implementation():
            barred.add(id(config))
        found.update({id(one): one for one in _with_parts(config)})
    return [config for name, config in found.items() if name not in barred]


def _with_parts(config: Any) -> Iterator[Any]:
    yield config
    for name in getattr(config, "sub_configs", ()):
        part = getattr(config, name, None)
        if part is not None:
            yield from _with_parts(part)


def must_keep_eager(model: nn.Module) -> bool:
    """Eager attention under gradient checkpointing.

    Masks are made outside of the checkpoint, for one implementation; a recomputation by another
    one, after watching has ended, would read them wrongly.
    """
    eager = any(
        config._attn_implementation_internal not in ("sdpa", NAME)
        for config in configurations(model)
    )
    return eager and any(
        getattr(module, "gradient_checkpointing", False) is True for module in model.modules()
    )
