"""Random numbers that depend on (seed, b, h, q, k) only, not on how the work is tiled.

A forward pass, its recomputation, the dense reference and the GPU so draw the same dropout and
the same noise. The generator is Philox4x32 with 10 rounds (Salmon et al., Parallel random numbers:
as easy as 1, 2, 3, 2011): its key is the seed, its counter is (k // 4, q, h, b), and key k takes
word k mod 4. Words of 32 bits are carried in int64.
"""

import math

import torch
from torch import Tensor

from attentropy.core.masks.extent import Where

_LOW = 0xFFFFFFFF
_ROUNDS = 10
_FACTORS = 0xD2511F53, 0xCD9E8D57
_STEPS = 0x9E3779B9, 0xBB67AE85


def uniform(seed: int, where: Where, *, dtype: torch.dtype) -> Tensor:
    """Uniform numbers in (0, 1), one for each index of the broadcast shape.

    Args:
        seed: a 64-bit number.
        where: places; their keys are a range, or one for each row.
        dtype: of the result.
    """
    # 23 bits, centred in their cell: exact in float32 and never 0 or 1
    words = [(x >> 9).to(dtype) for x in _words(seed, where)]
    return _interleaved(words, where).add_(0.5).mul_(2.0**-23)


def gumbel(seed: int, where: Where, *, dtype: torch.dtype) -> Tensor:
    """Standard Gumbel noise, -log(-log u).

    Args:
        seed: a 64-bit number.
        where: places; their keys are a range, or one for each row.
        dtype: of the result.
    """
    return uniform(seed, where, dtype=dtype).log_().neg_().log_().neg_()


def kept(seed: int, where: Where, *, rate: float, dtype: torch.dtype) -> Tensor:
    """Dropout factors: 0 where `uniform` is below `rate`, else 1 / (1 - rate).

    Args:
        seed: a 64-bit number.
        where: places; their keys are a range, or one for each row.
        rate: the share that is dropped.
        dtype: of the result.
    """
    words = [x >= least(rate) for x in _words(seed, where)]
    return _interleaved(words, where).to(dtype).div_(1 - rate)


def least(rate: float) -> int:
    """The least word of 32 bits whose weight is kept.

    Args:
        rate: the share that is dropped.

    >>> least(0.5) / 2**32
    0.5
    """
    return math.ceil(rate * 2**23 - 0.5) << 9


def _words(seed: int, where: Where) -> tuple[Tensor, ...]:
    """Four words for every four keys, from the last multiple of 4 on; or four for every key."""
    if _is_scattered(where):
        key = (seed & _LOW, seed >> 32 & _LOW)
        return philox(key, (where.k // 4, where.q, where.h, where.b))
    first, count = _range(where)
    fours = torch.arange(first // 4, (first + count + 3) // 4, device=where.k.device)
    return philox((seed & _LOW, seed >> 32 & _LOW), (fours, where.q, where.h, where.b))


def _interleaved(words: list[Tensor], where: Where) -> Tensor:
    """One word for every key."""
    if _is_scattered(where):
        every = torch.stack(torch.broadcast_tensors(*words), -1)
        return every.gather(-1, (where.k % 4).expand(every.shape[:-1])[..., None])[..., 0]
    first, count = _range(where)
    found = torch.stack(torch.broadcast_tensors(*words), -1).flatten(-2)
    return found[..., first % 4 : first % 4 + count]


def _is_scattered(where: Where) -> bool:
    """Whether each row has keys of its own, rather than all of them one range."""
    return where.k.numel() != where.k.shape[-1]


def _range(where: Where) -> tuple[int, int]:
    count = where.k.shape[-1]
    return int(where.k.flatten()[0]) if count else 0, count


def philox(key: tuple[int, int], counter: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Four random words for each counter of four words, in shapes that broadcast.

    Args:
        key: two words of the seed.
        counter: four words, in shapes that broadcast.

    >>> [hex(int(x)) for x in philox((0, 0), tuple(torch.zeros(4, dtype=torch.int64)))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        a, b = c0 * _FACTORS[0], c2 * _FACTORS[1]
        c0 = ((b >> 32) ^ c1).bitwise_xor_(k0).bitwise_and_(_LOW)
        c2 = ((a >> 32) ^ c3).bitwise_xor_(k1).bitwise_and_(_LOW)
        c1, c3 = b, a  # their high words go with the next mask
        k0, k1 = (k0 + _STEPS[0]) & _LOW, (k1 + _STEPS[1]) & _LOW
    return c0, c1 & _LOW, c2, c3 & _LOW
