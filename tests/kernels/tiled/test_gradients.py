"""Gradients of all that logits are made of, from those of the logits."""

import pytest
import torch

import attentropy as at
from attentropy.core.resolve import Options, resolve
from attentropy.kernels import reference
from attentropy.kernels.packing import INPUTS
from attentropy.kernels.tiled import tiles
from attentropy.kernels.tiled.gradients import GradientSums
from attentropy.kernels.tiled.tiles import Tiler
from tests.cases import Shape, options

SHAPE = Shape(queries=9, keys=13)


@pytest.fixture(params=["one tile", "many tiles"], autouse=True)
def size(request, monkeypatch):
    if request.param == "many tiles":
        monkeypatch.setattr(tiles, "TILE_ELEMENTS", 32)
        monkeypatch.setattr(tiles, "MAX_KEYS", 4)
        monkeypatch.setattr(tiles, "MIN_ROWS", 2)


def of_logits(call, ds):
    """Gradients that tiles add up."""
    tiler = Tiler(call)
    needs = {name: getattr(call, name) is not None for name in INPUTS}
    total = GradientSums(tiler, needs)
    for block in tiler.blocks():
        for keys in tiler.key_ranges(block):
            part = tiler.span(block, keys).of(ds).clone()
            total.add(block, keys, part.reshape(-1, tiler.group * block.count[2], part.shape[-1]))
    return dict(zip(INPUTS, total.found(), strict=True))


@pytest.mark.parametrize(
    "name",
    ["plain", "log length", "scale tensor", "bias", "relative", "alibi", "softcap", "additive"],
)
def test_every_input_of_the_logits(name):
    given = {**options(SHAPE)[name], "mask": at.causal}
    call = resolve(*(x.detach() for x in SHAPE.tensors()), Options(**given))
    leaves = {n: getattr(call, n) for n in INPUTS if n != "v" and getattr(call, n) is not None}
    leaves = {n: x.detach().requires_grad_() for n, x in leaves.items()}
    hidden = ~call.seen.dense()
    s = reference.logits(call._replace(**leaves), hidden)
    ds = torch.randn_like(s).masked_fill(hidden, 0.0)
    want = torch.autograd.grad(s, list(leaves.values()), ds)
    got = of_logits(call, ds)
    for n, g in zip(leaves, want, strict=True):
        torch.testing.assert_close(got[n], g, msg=n)
    assert not got["v"].any()


def test_gradients_that_are_not_needed_are_none():
    call = resolve(*(x.detach() for x in SHAPE.tensors()), Options())
    total = GradientSums(Tiler(call), {name: name == "k" for name in INPUTS})
    found = total.found()
    assert [x is not None for x in found] == [name == "k" for name in INPUTS]
    assert found[1].shape == call.k.shape


def test_gradients_have_the_dtype_of_their_inputs():
    call = resolve(*(x.detach().bfloat16() for x in SHAPE.tensors()), Options())
    total = GradientSums(
        Tiler(call), dict.fromkeys(INPUTS[:3], True) | dict.fromkeys(INPUTS[3:], False)
    )
    assert all(x.dtype == torch.float32 for x in total.of.values())
    assert [x.dtype for x in total.found()[:3]] == [torch.bfloat16] * 3
