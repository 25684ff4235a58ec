"""Which keys may a query see? True means visible, everywhere in this library.

With Q queries and K keys, query i stands at position i + K - Q: queries are aligned to the end of
the keys, as a KV cache needs. Window sizes count keys, the query's own position included:
`causal & lookback(3)` shows three keys.

    >>> print((causal & lookback(3)).draw(5))
    #....
    ##...
    ###..
    .###.
    ..###

A function `(b, h, q, k) -> bool` on index tensors, as FlexAttention takes it, is a mask too; its q
counts from 0, whatever K is.
"""

from attentropy.core.masks.extent import Extent, Where
from attentropy.core.masks.kinds import (
    between,
    causal,
    dense,
    documents,
    full,
    lookahead,
    lookback,
    padding,
    prefix,
    strided,
)
from attentropy.core.masks.mask import Mask, MaskLike, all_of, as_mask

__all__ = [
    "Extent",
    "Mask",
    "MaskLike",
    "Where",
    "all_of",
    "as_mask",
    "between",
    "causal",
    "dense",
    "documents",
    "full",
    "lookahead",
    "lookback",
    "padding",
    "prefix",
    "strided",
]
