"""A layer whose sequences are spread over ranks gives the rows of the layer that has them whole."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import attentropy as at
from tests.processes import spawn

LENGTH, WIDTH = 21, 32


def layers(**options):
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        own = copy.deepcopy(options)
        found.append(at.nn.MultiheadAttention(WIDTH, 4, mask=at.causal, **own).double())
    return found


def kinds():
    return {
        "plain": {},
        "rotary": {"positions": at.nn.RotaryPositions(), "scale": at.LogLengthFrom(4)},
        "sinusoidal": {"positions": at.nn.SinusoidalPositions(), "num_kv_heads": 2},
        "relative": {"positions": at.nn.RelativeBias(4, 5), "qk_norm": "rms"},
        "alibi": {"positions": at.ALiBi()},
    }


def check(options, mesh, spread):
    whole, parted = layers(**options)
    parted.spread = spread
    x = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1)).double()
    hidden = torch.zeros(2, LENGTH, dtype=torch.bool)
    hidden[1, -4:] = True
    out, stats = whole(x, key_padding_mask=hidden)
    part, rows = parted(spread.layout.shard(x), key_padding_mask=hidden)
    torch.testing.assert_close(part, spread.layout.shard(out))
    for name in ("entropy", "visible", "argmax"):
        want = spread.layout.shard(getattr(stats, name), dim=2)
        torch.testing.assert_close(getattr(rows, name), want)
    (out.square().sum() + stats.entropy.sum()).backward()
    (part.square().sum() + rows.entropy.sum()).backward()
    for a, b in zip(parted.parameters(), whole.parameters(), strict=True):
        dist.all_reduce(a.grad)
        torch.testing.assert_close(a.grad, b.grad)


def adapts(mesh):
    """The scale of each head follows the entropy of the whole sequence, the same on every rank."""
    ends = []
    for spread in (None, at.zigzag.over(mesh)):
        torch.manual_seed(0)
        scale = at.nn.AdaptiveScale(1.0)
        layer = at.nn.MultiheadAttention(WIDTH, 4, mask=at.causal, scale=scale)
        layer.spread = spread
        x = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
        for _ in range(3):
            layer(x if spread is None else at.zigzag.shard(x))
        ends.append(layer.logit_scale(LENGTH))
    torch.testing.assert_close(*ends)


def steers(mesh):
    """A layer over ranks is steered as the whole one, and a watch says that it is not recorded."""
    whole, parted = layers()
    parted.spread = at.zigzag.over(mesh)
    x = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1)).double()
    steering = {"scale": at.LogLengthFrom(4), "mask": at.lookback(6), "temperature": 0.5}
    handles = [at.steer(layer, **steering) for layer in (whole, parted)]
    out, part = whole(x).out, parted(at.zigzag.shard(x)).out
    torch.testing.assert_close(part, at.zigzag.shard(out))
    assert not torch.allclose(layers()[0](x).out, out, atol=1e-2)
    for handle in handles:
        handle.undo()
    why = r"nothing was recorded of the model \(ring_attend\(\)"
    with pytest.raises(RuntimeError, match=why), at.watch(parted):
        parted(at.zigzag.shard(x))


def work(rank):
    mesh = init_device_mesh("cpu", (2,))
    for options in kinds().values():
        check(options, mesh, at.zigzag.over(mesh))
    made = at.nn.MultiheadAttention(WIDTH, 4, context_parallel=mesh)
    assert made.spread == at.contiguous.over(mesh)
    check({}, mesh, made.spread)
    adapts(mesh)
    steers(mesh)
    with pytest.raises(at.UnsupportedError, match="context_parallel takes no cache"):
        made(torch.zeros(1, 3, WIDTH), cache=at.nn.KVCache())
    with pytest.raises(TypeError, match="group must be a ProcessGroup, a DeviceMesh or None"):
        at.nn.MultiheadAttention(WIDTH, 4, context_parallel=2)
    with pytest.raises(ValueError, match="the length of the sequence on rank 0 must be"):
        made(torch.zeros(1, 3 + 5 * rank, WIDTH))
    return "same"


def test_two_processes():
    assert spawn(work, 2) == ["same", "same"]
