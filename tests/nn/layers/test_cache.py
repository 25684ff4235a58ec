"""A cache gives what the whole pass gives; it is frozen, cropped and reordered."""

import pytest
import torch

import attentropy as at
from tests.nn.layers.test_multihead import PARTS, layer_of

MHA = at.nn.MultiheadAttention


@pytest.mark.parametrize("name", PARTS)
def test_a_cache_gives_what_the_whole_pass_gives(name):
    layer, x = layer_of(name), torch.randn(2, 9, 32)
    whole = layer(x)
    cache = at.nn.KVCache()
    steps = [layer(part, cache=cache) for part in x.split((4, 1, 1, 3), 1)]
    assert cache.length == 9
    torch.testing.assert_close(torch.cat([s.out for s in steps], 1), whole.out)
    for field in ("visible", "collision"):
        got = torch.cat([getattr(s.stats, field) for s in steps], 2)
        torch.testing.assert_close(got, getattr(whole.stats, field))


def test_a_frozen_cache_is_cross_attention():
    layer = MHA(32, 4, kdim=10, vdim=10).eval()
    memory, x = torch.randn(2, 6, 10), torch.randn(2, 3, 32)
    cache = layer.remember(memory)
    for _ in range(2):
        torch.testing.assert_close(layer(x, cache=cache).out, layer(x, memory).out)
    assert repr(cache) == "KVCache(6 keys, frozen)"
    with pytest.raises(ValueError, match="key must be None with a frozen cache"):
        layer(x, memory, cache=cache)


def test_cache_can_be_cropped_and_reordered():
    layer, x = layer_of("rotary"), torch.randn(2, 6, 32)
    cache = at.nn.KVCache()
    layer(x, cache=cache)
    cache.crop(4)
    torch.testing.assert_close(layer(x[:, 4:], cache=cache).out, layer(x).out[:, 4:])
    cache.crop(5)
    cache.reorder(torch.tensor([1, 0]))
    swapped = layer(x[:, 5:].flip(0), cache=cache).out
    torch.testing.assert_close(swapped, layer(x).out[:, 5:].flip(0))
    with pytest.raises(ValueError, match="length must be between 0 and 6, got 7"):
        cache.crop(7)
    with pytest.raises(ValueError, match="batch size must be 2, as in the cache, got 1"):
        layer(x[:1], cache=cache)


def test_keys_are_appended():
    cache = at.nn.KVCache()
    assert cache.length == 0
    assert repr(cache) == "KVCache(0 keys)"
    k, v = torch.randn(2, 1, 3, 4), torch.randn(2, 1, 3, 5)
    cache.extend(k, v)
    both = cache.extend(k + 1, v + 1)
    assert torch.equal(both[0], torch.cat([k, k + 1], 2))
    assert torch.equal(both[1], torch.cat([v, v + 1], 2))
    assert cache.length == 6


def test_a_frozen_cache_takes_no_more():
    cache = at.nn.KVCache().freeze()
    with pytest.raises(ValueError, match="cache must be not frozen to take more keys"):
        cache.extend(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1))


def test_an_empty_cache_is_cropped_and_reordered():
    cache = at.nn.KVCache()
    cache.crop(0)
    cache.reorder(torch.tensor([0]))
    assert cache.length == 0
