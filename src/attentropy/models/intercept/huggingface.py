"""Models of transformers, through its attention interface.

A model asks the interface for its attention function. While anything is watched or steered, the
function of a model that attends eagerly comes wrapped. Configurations stay as they are, so a model
makes the masks and takes the branches that it would without us. Models that use `sdpa` are met at
torch's scaled_dot_product_attention. Nothing here is imported before a model of transformers is
seen.
"""

import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn

from attentropy.core.masks import Extent
from attentropy.core.resolve import Options
from attentropy.models.intercept import registry, tracking, verify
from attentropy.models.intercept.candidates import is_transformers
from attentropy.models.intercept.compute import (
    Intercepted,
    ModelInputs,
    answer,
    is_cross,
    pass_by,
)
from attentropy.models.intercept.tracking import STATE
from attentropy.models.record.model_masks import ModelMask, everything, from_table

EAGER = (None, "eager")
KERNELS = ("flash", "flex", "paged", "sage")  # in names of implementations that call no softmax
NO_MAPS = ("_supports_sdpa", "_supports_flash_attn", "_supports_flex_attn")


def hold() -> registry.Undo:
    """Take over attention functions of transformers, until the function returned is called."""
    return registry.hold("transformers' attention interface", _apply)


def _apply() -> registry.Undo:
    from transformers.modeling_utils import AttentionInterface

    original = getattr(AttentionInterface, "get_interface", None)
    if original is None:  # models then call their functions themselves, and softmax is observed
        return registry.together()

    def get_interface(self: Any, attn_implementation: Any, default: Any) -> Callable[..., Any]:
        function = original(self, attn_implementation, default)
        if attn_implementation == "sdpa":
            return function
        if attn_implementation in EAGER:
            return partial(attend_eagerly, function)
        if any(name in attn_implementation for name in KERNELS):
            return partial(_named, attn_implementation, function)
        return function

    return registry.replace(AttentionInterface, "get_interface", get_interface)


def _named(name: str, function: Callable[..., Any], module: nn.Module, *a: Any, **k: Any) -> Any:
    """Call a kernel that is neither recorded nor changed, and say so."""
    pass_by(module, name)
    return function(module, *a, **k)


def attend_eagerly(
    function: Callable[..., Any],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *args: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> Any:
    """The eager attention of a model: its output [B,Q,H,Dv], and its weights or None.

    Args:
        function: the eager function of the model.
        module: makes the call.
        query: [B,H,Q,D].
        key: [B,Hk,K,D].
        value: [B,Hk,K,Dv].
        attention_mask: float, added, or bool, True may attend; None means no mask.
        args: more arguments of the function.
        dropout: share of weights dropped.
        scaling: multiplies the logits; 1 / sqrt(D) if not given.
        kwargs: `position_bias`, `softcap` and `s_aux` (a learned sink [H]) are applied, others are
            passed on. Where one of them changes the result, the model's own function serves.
    """
    if tracking.tracked(module) is None:
        given = {"dropout": dropout, "scaling": scaling, **kwargs}
        return function(module, query, key, value, attention_mask, *args, **given)

    def own(dropout: float = dropout) -> Any:
        given = {"dropout": dropout, "scaling": scaling, **kwargs}
        return function(module, query, key, value, attention_mask, *args, **given)

    def read() -> ModelInputs:
        options = Options(
            scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
            bias=kwargs.get("position_bias"),
            softcap=kwargs.get("softcap"),
            sink=kwargs.get("s_aux"),
            dropout=dropout,
        )
        return ModelInputs(query, key, value, options, _mask(module, query, key, attention_mask))

    made = Intercepted(
        way=_way(query, key, value, attention_mask, args, kwargs),
        read=read,
        own=own,
        output=lambda result: result[0].transpose(1, 2),
        result=lambda out, weights: (out.transpose(1, 2).contiguous(), weights),
        dropout=dropout,
        maps=_wants_maps(module, kwargs),
        by_softmax=True,
    )
    return answer(module, made)


def _way(q: Tensor, k: Tensor, v: Tensor, mask: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = tuple(name for name, value in kwargs.items() if value is not None)
    return "eager", verify.sizes(q, k, v), verify.form(mask), len(args), given


def _mask(module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None) -> ModelMask:
    batch, heads, queries, _ = query.shape
    extent = Extent(batch, heads, queries, key.shape[2], query.device)
    if mask is None:
        return everything(extent, cross=is_cross(module, extent))
    return from_table(mask, extent, cross=is_cross(module, extent))


def _wants_maps(module: nn.Module, kwargs: dict[str, Any]) -> bool:
    """Does anyone ask for weights? Models that know eager attention alone may always use them."""
    config = getattr(module, "config", None)
    if kwargs.get("output_attentions") or getattr(config, "output_attentions", False):
        return True
    model = next((m for m in reversed(STATE.running) if is_transformers(m)), None)
    if not any(getattr(model, name, False) for name in NO_MAPS):
        return True
    return not torch.compiler.is_compiling() and _collected()


def _collected() -> bool:
    """Is transformers collecting weights? Its private part, for models that pass nothing on."""
    module = sys.modules.get("transformers.utils.output_capturing")
    collector = getattr(module, "_active_collector", None)
    asked = collector.get() if collector is not None else None
    return any("attentions" in name for name in asked or ())


def hold_generate() -> registry.Undo:
    """Follow generate() of watched models, until the function returned is called."""
    return registry.hold("generate()", _follow_generate)


def _follow_generate() -> registry.Undo:
    from transformers import GenerationMixin

    plain: Callable[..., Any] = GenerationMixin.generate

    @wraps(plain)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        from attentropy.models.generated import followed

        attached = tracking.tracked(self)
        recorder = None if attached is None else attached.recorder
        if recorder is None:
            return plain(self, *args, **kwargs)
        return followed(plain, recorder, self, args, kwargs)

    return registry.replace(GenerationMixin, "generate", generate)
