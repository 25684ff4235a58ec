"""cache_attend(): attention to keys that stay on their ranks, as in a cache that ranks share.

Flash-decoding over ranks: each attends its keys, and row states merge with one all_gather. Output
and statistics are those of attend() on all keys, on every rank.
"""

from functools import partial
from typing import Unpack

import torch
from torch import Tensor

from attentropy.attention import attend as attention
from attentropy.attention.hooks import changed, skipped
from attentropy.core.call import Call
from attentropy.core.errors import UnsupportedError
from attentropy.core.resolve import (
    AttendOptions,
    Options,
    Share,
    check_tensors,
    options_of,
    resolve,
)
from attentropy.core.results import Attended
from attentropy.distributed import journey as ring
from attentropy.distributed.cache import HeldKeys, StayRoute, over_ranks
from attentropy.distributed.groups import Group, peers
from attentropy.distributed.merging import StateMerging
from attentropy.kernels.attended import attended


def cache_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    here: tuple[HeldKeys, ...],
    keys: int,
    group: Group = None,
    kernel: str = "auto",
    **options: Unpack[AttendOptions],
) -> Attended:
    """attend() where every rank holds all queries, and each rank holds some of the keys.

    Every rank of the group calls it with the same queries and options. Masks, biases and scales
    are those of the whole sequence, as in ring_attend(); queries are its last ones. Weights must be
    probabilities that merge, and there are no gradients.

    Args:
        q: queries [B,H,Q,D], the same on every rank.
        k: the keys that this rank holds, [B,Hk,n,D].
        v: the values of these keys, [B,Hk,n,Dv].
        here: which positions these are; every position is on one rank.
        keys: number of all keys.
        group: as in ring_attend().
        kernel: as in attend(), for each part.
        options: as in ring_attend().
    """
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise UnsupportedError("cache_attend has no gradients: call it under torch.no_grad()")
    check_tensors(q, k, v)
    me, queries = peers(group), q.shape[2]
    rows = (range(queries),)
    route, run = StayRoute(me, here), partial(attention.run, kernel=kernel)

    def make(q: Tensor, k: Tensor, asked: Options) -> tuple[Call, ring.Journey, StateMerging]:
        call = resolve(q, k, v, asked, share=Share(queries, keys, rows))
        way = ring.journey(call, rows, shift=keys - queries, route=route, kernel=run)
        if not isinstance(way.merging, StateMerging):
            kind = type(asked.weights).__name__
            raise UnsupportedError(f"cache_attend does not take {kind} weights")
        return call, way, way.merging

    call, way, merging = changed(q, k, options_of(options), make)

    def merged() -> Attended:
        kept = over_ranks(me, ring.held(way))
        return attended(call, merging.rows(call, kept))

    return skipped("cache_attend()", merged)
