"""The Philox draws are those of attentropy.kernels.noise, whatever the tile."""

import pytest
import torch
import triton
import triton.language as tl

from attentropy.core.masks import Where
from attentropy.kernels import noise
from attentropy.kernels.triton.device.dropout import gains
from tests.kernels.triton.device.helpers import interpreted
from tests.kernels.triton.problems import problem, tensors


@triton.jit
def drawn(into, drop, b, h, first, QUERIES: tl.constexpr, KEYS: tl.constexpr):
    i, n = tl.arange(0, QUERIES), tl.arange(0, KEYS)
    found = gains(drop, b, h, i[:, None], first, KEYS)
    tl.store(into + i[:, None] * KEYS + n[None, :], found)


@interpreted
@pytest.mark.parametrize("seed", [0, 7, 2**61 + 3])
@pytest.mark.parametrize("first", [0, 16, 256])
def test_the_same_weights_stay(seed, first):
    rate, b, h = 0.3, 2, 5
    drop = problem(*tensors(), dropout=rate, seed=torch.tensor(seed)).drop()
    got = torch.empty(8, 16)
    drawn[(1,)](got, drop, b, h, first, 8, 16)
    places = (torch.tensor([[b]]), torch.tensor([[h]]), torch.arange(8)[:, None])
    where = Where(*places, torch.arange(first, first + 16)[None], 0)
    want = noise.kept(seed, where, rate=rate, dtype=torch.float32)
    torch.testing.assert_close(got, want)
    assert (got == 0).any()
