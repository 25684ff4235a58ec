"""Padding, windows and caches of a model whose sequences are spread over ranks."""

from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import attentropy as at
from attentropy.distributed.layouts import Placed, spread
from attentropy.models.steer import sequences
from attentropy.models.steer.sequences import CachedShare
from tests.models.steer.test_context_parallel import build
from tests.processes import spawn

N, NEW = 23, 6


def given(*, padding):
    """Tokens, their mask and positions; the second row is padded on one side."""
    tokens = torch.randint(50, (2, N), generator=torch.Generator().manual_seed(0))
    real = torch.ones(2, N, dtype=torch.int64)
    if padding == "right":
        real[1, -7:] = 0
    if padding == "left":
        real[1, :7] = 0
    places = (real.cumsum(1) - 1).clamp(min=0)
    return tokens, None if padding is None else real, places if padding == "left" else None


def read(model, tokens, mask, places, **more):
    return model(tokens, attention_mask=mask, position_ids=places, **more)


def check_prompt(over, padding, *, steering=None, **options):
    """Logits of real tokens, and gradients, are those of one process."""
    layout = spread(over).layout
    tokens, mask, places = given(padding=padding)
    whole, parted = build(**options), build(**options)
    if steering:
        at.steer(whole, **steering)
    at.steer(parted, context_parallel=over, **(steering or {}))
    want = read(whole, tokens, mask, places, use_cache=False).logits
    mine = [None if x is None else layout.shard(x) for x in (tokens, mask, places)]
    got = read(parted, *mine, use_cache=False).logits
    real = torch.ones(2, N) if mask is None else mask
    counts = layout.shard(real)[..., None]
    torch.testing.assert_close(got * counts, layout.shard(want) * counts, atol=2e-5, rtol=1e-4)
    (want * real[..., None]).square().sum().backward()
    (got * counts).square().sum().backward()
    for a, b in zip(parted.parameters(), whole.parameters(), strict=True):
        dist.all_reduce(a.grad)
        torch.testing.assert_close(a.grad, b.grad, atol=1e-3, rtol=1e-3)


@contextmanager
def counting():
    """The calls of all_gather inside the block."""
    calls, plain = [], dist.all_gather
    dist.all_gather = lambda *x, **o: calls.append(x) or plain(*x, **o)
    yield calls
    dist.all_gather = plain


@torch.no_grad()
def check_cache(over, padding, *, steering=None, sizes=(1,) * NEW, **options):
    """A prompt in parts, then new tokens on every rank: the logits of one process."""
    layout = spread(over).layout
    tokens, mask, places = given(padding=padding)
    after = torch.randint(50, (2, NEW), generator=torch.Generator().manual_seed(1))
    whole, parted = build(**options), build(**options)
    if steering:
        at.steer(whole, **steering)
    at.steer(parted, context_parallel=over, **(steering or {}))
    mine = [None if x is None else layout.shard(x) for x in (tokens, mask, places)]
    a = read(whole, tokens, mask, places, use_cache=True).past_key_values
    b = read(parted, *mine, use_cache=True).past_key_values
    for new in after.split(list(sizes), 1):
        if mask is not None:
            mask = torch.cat([mask, torch.ones_like(new)], 1)
        if places is not None:
            places = places[:, -1:] + 1 + torch.arange(new.shape[1])
        want = read(whole, new, mask, places, past_key_values=a).logits
        with counting() as calls:
            got = read(parted, new, None, places, past_key_values=b).logits
        assert len(calls) == 2  # one for each layer
        torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)


def small(rank):
    sequences.CHUNK = 2
    check_cache(at.zigzag.over(init_device_mesh("cpu", (2,))), None, sizes=(1, 1, 3, 1))
    return "same"


def test_new_tokens_after_a_prompt_in_parts():
    assert spawn(small, 2) == ["same", "same"]


def everything(rank, ranks):
    mesh = init_device_mesh("cpu", (ranks,))
    sequences.CHUNK = 2
    scaled = {"scale": at.LogLengthFrom(4)}
    for over in (mesh, at.zigzag.over(mesh)):
        check_prompt(over, "right")
        check_prompt(over, "left")
        check_cache(over, "left", steering=scaled)
        check_prompt(over, None, sliding_window=8)
        check_prompt(over, "right", sliding_window=8, steering=scaled)
        check_cache(over, None, sliding_window=8)
        check_cache(over, "left", sliding_window=8, sizes=(2, 4))
    refused(mesh)
    return "same"


def refused(mesh):
    model = build()
    at.steer(model, context_parallel=mesh)
    tokens = torch.zeros(1, 12, dtype=torch.int64)
    left = torch.tensor([[0] * 3 + [1] * 9])
    with pytest.raises(at.UnsupportedError, match="padding before tokens without position_ids"):
        model(tokens, attention_mask=left)
    with pytest.raises(at.UnsupportedError, match="a mask other than a causal one"):
        model(tokens, attention_mask=torch.ones(1, 1, 12, 12))
    cache = build()(tokens, use_cache=True).past_key_values
    with pytest.raises(at.UnsupportedError, match="a cache that was not filled under it"):
        model(tokens[:, :1], past_key_values=cache)
    cache = model(tokens, use_cache=True).past_key_values
    with pytest.raises(at.UnsupportedError, match=r"has no gradients: call it under torch.no_grad"):
        model(tokens[:, :1], past_key_values=cache)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_padding_windows_and_caches(ranks):
    found = spawn(everything, ranks, ranks)
    assert found == ["same"] * ranks, found[0]


def test_keys_that_count_on_a_rank():
    share = CachedShare(Placed(10, (range(2, 4), range(6, 8))), None, new=600)
    found = share.held(604, ranks=2, rank=1)
    assert [(run.positions, run.columns) for run in found] == [
        (range(2, 4), slice(0, 2)),
        (range(6, 8), slice(2, 4)),
        (range(266, 522), slice(260, 516)),
    ]
    window = share.held(400, ranks=2, rank=1)  # a layer that keeps the last 400 keys
    assert [(run.positions, run.columns) for run in window] == [(range(266, 522), slice(56, 312))]
    assert share.held(100, ranks=2, rank=1)[0].positions == range(510, 522)
    assert share.whole == 610
