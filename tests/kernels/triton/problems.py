"""Calls as the Triton kernels take them, made by hand."""

import torch

from attentropy.core.call import Call
from attentropy.core.masks import Extent
from attentropy.core.visibility import Visibility
from attentropy.core.weights import Softmax
from attentropy.kernels.triton.problem import Problem

LACKING = ("varentropy",)  # statistics that the kernels do not compute


def call(q, k, v, *, scale=None, lo=None, hi=None, table=None, bias=None, visible=None, **terms):
    """A call with bounds or a table for a mask; scale 1 if not given."""
    batch, heads, queries, _ = q.shape
    extent = Extent(batch, heads, queries, k.shape[2], q.device)
    seen = Visibility(extent, lo, hi, table, added=bias, counted=visible)
    seen = seen.with_visible() if visible is None else seen
    scale = torch.ones(1, 1, 1) if scale is None else scale
    return Call(q=q, k=k, v=v, scale=scale, weights=Softmax(), seen=seen, bias=bias, **terms)


def problem(*tensors, **terms):
    return Problem.of(call(*tensors, **terms))


def tensors(queries=9, keys=11, *, batch=1, heads=2, key_heads=1, width=8, value_width=6, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    return (
        draw(batch, heads, queries, width),
        draw(batch, key_heads, keys, width),
        draw(batch, key_heads, keys, value_width),
    )
