"""The draws: those of Philox as published, wherever a tile begins."""

import math

import pytest
import torch

from attentropy.core.masks import Extent, Where
from attentropy.kernels import noise

PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
ONES = 0xFFFFFFFF


def places(batch=2, heads=3, queries=5, keys=23):
    return Extent(batch, heads, queries, keys, torch.device("cpu")).where()


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES, ONES), (ONES,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        ((0xA4093822, 0x299F31D0), PI, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)
def test_known_answers_of_philox4x32_10(key, counter, words):
    found = noise.philox(key, tuple(torch.tensor(c) for c in counter))
    assert tuple(int(x) for x in found) == words


def test_a_draw_is_the_word_of_its_place():
    seed = 0x299F31D0_A4093822
    drawn = noise.uniform(seed, places(), dtype=torch.float64)
    assert drawn.shape == (2, 3, 5, 23)
    for b, h, q, k in ((0, 0, 0, 0), (1, 2, 4, 22), (1, 0, 3, 9)):
        counter = tuple(torch.tensor(x) for x in (k // 4, q, h, b))
        word = int(noise.philox((0xA4093822, 0x299F31D0), counter)[k % 4])
        assert drawn[b, h, q, k] == ((word >> 9) + 0.5) / 2**23


@pytest.mark.parametrize("first", [0, 1, 4, 6, 11, 22, 23])
def test_tiles_draw_what_the_whole_draws(first):
    b, h, q, k, shift = places()
    whole = noise.uniform(-3, places(), dtype=torch.float32)
    tile = noise.uniform(-3, Where(b, h, q[:, :, 2:], k[..., first:], shift), dtype=torch.float32)
    assert torch.equal(tile, whole[:, :, 2:, first:])


@pytest.mark.parametrize("rate", [0.0, 1e-9, 0.1, 0.5, 0.999])
def test_dropout_compares_the_same_draws(rate):
    for dtype in (torch.float32, torch.float64):
        uniform = noise.uniform(9, places(keys=400), dtype=torch.float64)
        kept = noise.kept(9, places(keys=400), rate=rate, dtype=dtype)
        assert kept.dtype == dtype
        torch.testing.assert_close(kept, (uniform >= rate).to(dtype) / (1 - rate))


def test_draws_are_even_and_their_neighbours_independent():
    u = noise.uniform(1, places(1, 8, 128, 256), dtype=torch.float64)[0]
    count = u.numel()
    assert 0 < u.min() < u.max() < 1
    assert abs(u.mean() - 0.5) < 4 / math.sqrt(12 * count)
    assert abs(u.var() - 1 / 12) < 4 * math.sqrt(1 / 180 / count)
    for axis in range(3):
        pairs = torch.stack(
            [u.narrow(axis, 0, u.shape[axis] - 1), u.narrow(axis, 1, u.shape[axis] - 1)]
        )
        assert abs(torch.corrcoef(pairs.flatten(1))[0, 1]) < 4 / math.sqrt(pairs[0].numel())
    other = noise.uniform(2, places(1, 8, 128, 256), dtype=torch.float64)[0]
    assert abs(torch.corrcoef(torch.stack([u, other]).flatten(1))[0, 1]) < 4 / math.sqrt(count)
