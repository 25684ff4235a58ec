"""attention_weights(): the weights themselves, in O(n^2) memory."""

import warnings
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from attentropy.attention.attend import is_empty, widened
from attentropy.attention.hooks import changed
from attentropy.core.resolve import AttendOptions, check_tensors, options_of, resolve
from attentropy.core.results import Attended, Stats
from attentropy.kernels import reference

LARGE = 1 << 27
"""Numbers of weights above which their memory is spoken of: 1 GB in float64."""


class AttentionWeights(Tensor):
    """Weights [B,H,Q,K] that know the statistics of their rows: `weights.stats`, `weights.entropy`.

    Whatever is computed from them is a plain tensor. Statistics whose names tensors have too, such
    as `argmax`, are read as `weights.stats.argmax`.
    """

    stats: Stats
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name == "stats":
            raise AttributeError("these weights have no statistics")
        return getattr(self.stats, name)


class WeightedOutput(NamedTuple):
    """The output of a layer, and the weights [B,H,Q,K] that made it."""

    out: Tensor
    weights: AttentionWeights

    @property
    def stats(self) -> Stats:
        """Statistics of every row."""
        return self.weights.stats


def attention_weights(q: Tensor, k: Tensor, **options: Unpack[AttendOptions]) -> Tensor:
    """The weights of attend() with these arguments, [B,H,Q,K], before dropout; differentiable.

    They take O(n^2) memory, which attend() does not need.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D]; Hk divides H.
        options: mask, score, scale, weights, bias, softcap and sink, as in attend().

    Returns:
        [B,H,Q,K] in float32, or float64 for float64 inputs; 0 where a key is hidden.

    >>> q = torch.ones(1, 1, 2, 8)
    >>> attention_weights(q, q, mask=lambda b, h, q, k: k <= q)
    tensor([[[[1.0000, 0.0000],
              [0.5000, 0.5000]]]])
    """
    check_tensors(q, k, k)
    with torch.autocast(q.device.type, enabled=False):
        asked = options_of(options)._replace(dropout=0.0)
        call = changed(q, k, asked, lambda q, k, options: resolve(q, k, k, options))
        shape = (*call.q.shape[:3], call.k.shape[2])
        _speak_of_memory(shape)
        if is_empty(call) or call.q.is_meta:
            return call.scale.new_zeros(shape)
        return reference.weights(widened(call)).to(call.scale.dtype)


def with_weights(attended: Attended, weights: Tensor) -> WeightedOutput:
    """An output and its weights, which carry the statistics.

    Args:
        attended: what a layer computed.
        weights: what attention_weights() gave.
    """
    known = weights.as_subclass(AttentionWeights)
    known.stats = attended.stats
    return WeightedOutput(attended.out, known)


def _speak_of_memory(shape: tuple[int, ...]) -> None:
    number = 1
    for size in shape:
        number *= size
    if number > LARGE:
        text = (
            f"attentropy: weights of shape {list(shape)} take {number * 8 / 1e9:.1f} GB while they "
            "are computed, and that grows like n^2; need_weights=False gives the output and the "
            "statistics in O(n) memory"
        )
        warnings.warn(text, ResourceWarning, stacklevel=3)
