"""One forward pass over ids, and the logits of the next token in what it returns."""

import inspect
from typing import Any

from torch import Tensor, nn


def read(model: nn.Module, ids: Tensor, **options: Any) -> Any:
    """One forward pass, without a cache where the model would make one.

    A model of an encoder and a decoder reads the same text with both.

    Args:
        model: the model.
        ids: tokens [B, n].
        options: more arguments for the model, which come before these.
    """
    given: dict[str, Any] = {}
    if getattr(getattr(model, "config", None), "use_cache", False):
        given["use_cache"] = False
    if has_decoder_beside(model):
        given["decoder_input_ids"] = ids
    return model(ids, **(given | options))


def has_decoder_beside(model: nn.Module) -> bool:
    """True if the model has a decoder that reads a text of its own."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def logits_of(output: Any, ids: Tensor) -> Tensor | None:
    """The logits in an output that scores every token of the vocabulary at every position.

    Args:
        output: what the model returned.
        ids: tokens [B, n] that it read.
    """
    found = getattr(output, "logits", output)
    if not isinstance(found, Tensor) or found.shape[:2] != ids.shape or found.ndim != 3:
        return None
    return found if found.shape[-1] > int(ids.max()) else None


def takes(model: nn.Module, argument: str) -> bool:
    """True if the forward pass of the model has an argument of this name.

    Args:
        model: the model.
        argument: such as "position_ids".
    """
    return argument in inspect.signature(model.forward).parameters


def takes_cache(model: nn.Module) -> bool:
    """True if the model can read a text in pieces, keeping keys and values of what it read."""
    config = getattr(model, "config", None)
    known = hasattr(config, "use_cache") and takes(model, "past_key_values")
    return known and takes(model, "use_cache") and not has_decoder_beside(model)
