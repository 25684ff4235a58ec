"""How the rows of parts of the keys become the rows of all keys.

What is kept of the parts seen so far is a tuple of tensors, the first of which are sums: a part
adds to each of them, and gradients of the sums are gradients of what a part adds. Softmax rows are
row states, whose sums merge (attentropy.core.states). Rows of weights that are not probabilities
add up as they are.
"""

from typing import Protocol

import torch
from torch import Tensor

from attentropy.core.call import Call, Rows
from attentropy.core.states import (
    RowState,
    blind,
    merge,
    read,
    rescaled,
    rest_of,
    spread_of,
    strongest,
    unread,
)
from attentropy.core.weights import Weights
from attentropy.kernels.attended import attended
from attentropy.kernels.tiled.sums import divided, row_size

Kept = tuple[Tensor, ...]


class Merging(Protocol):
    """What the ring needs from a way to merge.

    Attributes:
        sums: how many of the tensors that are kept are sums, and have gradients.
    """

    sums: int

    def empty(self, shape: tuple[int, ...], width: int, *, like: Tensor) -> Kept:
        """What is kept of rows that saw nothing.

        Args:
            shape: of the rows.
            width: of values.
            like: a tensor of the dtype and device wanted.
        """
        ...

    def add(self, kept: Kept, call: Call, rows: Rows, *, first: int) -> Kept:
        """What is kept after one more part.

        Args:
            kept: what was kept so far.
            call: of the part.
            rows: what a kernel gave for it.
            first: index of its first key.
        """
        ...

    def added(self, kept: Kept, call: Call, rows: Rows) -> Kept:
        """What a part adds to each of the sums of the whole; differentiable.

        Args:
            kept: what was kept of the whole.
            call: of the part.
            rows: what a kernel gave for it.
        """
        ...

    def rows(self, call: Call, kept: Kept) -> Rows:
        """The rows of the whole, as a kernel gives them; differentiable.

        Args:
            call: of the whole.
            kept: what was kept of it.
        """
        ...


class StateMerging:
    """Softmax rows. The sums l, t, u, c and o are kept, then m, visible, argmax, rest and spread.

    Attributes:
        sums: 5: l, t, u, c and o.
    """

    sums: int = 5

    def empty(self, shape: tuple[int, ...], width: int, *, like: Tensor) -> Kept:
        """The identity of `merge`.

        Args:
            shape: of the rows.
            width: of values.
            like: a tensor of the dtype and device wanted.
        """
        return kept_of(blind(shape, width, like=like))

    def add(self, kept: Kept, call: Call, rows: Rows, *, first: int) -> Kept:
        """Merge two row states.

        Args:
            kept: what was kept so far.
            call: of the part.
            rows: what a kernel gave for it.
            first: index of its first key.
        """
        part = unread(attended(call, rows), log_l=rows.log_l, first=first)
        return kept_of(merge(state_of(kept), part))

    def added(self, kept: Kept, call: Call, rows: Rows) -> Kept:
        """The sums of the part about the maximum of the whole.

        Args:
            kept: what was kept of the whole.
            call: of the part.
            rows: what a kernel gave for it.
        """
        part = unread(attended(call, rows), log_l=rows.log_l)
        return kept_of(rescaled(part, state_of(kept).m))[: self.sums]

    def rows(self, call: Call, kept: Kept) -> Rows:
        """Read the row state.

        Args:
            call: of the whole.
            kept: what was kept of it.
        """
        state = state_of(kept)
        out, s = read(state)
        log_l = rest_of(state).masked_fill(state.l == 0, 0.0).log1p()
        wide = (s.entropy, s.lse, s.max_logit, s.argmax, s.collision)
        return Rows(out.to(call.v.dtype), *wide, log_l=log_l, varentropy=s.varentropy)


def kept_of(state: RowState) -> Kept:
    """What StateMerging keeps of rows.

    Args:
        state: of the rows.
    """
    m, l, t, u, c, o, visible, argmax, *_ = state
    return l, t, u, c, o, m, visible, argmax, rest_of(state), spread_of(state)


def state_of(kept: Kept) -> RowState:
    """The state of rows.

    Args:
        kept: what StateMerging keeps of them.
    """
    l, t, u, c, o, m, visible, argmax, rest, spread = kept
    return RowState(m, l, t, u, c, o, visible, argmax, rest, spread)


class SumMerging:
    """Rows of unnormalised weights: out, mass and collision add up; then m and argmax are kept.

    Args:
        weights: those of the whole, by which its rows are normalised.
    """

    sums: int = 3

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def empty(self, shape: tuple[int, ...], width: int, *, like: Tensor) -> Kept:
        """Zeros, and no largest logit.

        Args:
            shape: of the rows.
            width: of values.
            like: a tensor of the dtype and device wanted.
        """
        zero = like.new_zeros(shape)
        none = torch.full(shape, -1, dtype=torch.int64, device=like.device)
        return like.new_zeros(*shape, width), zero, zero, torch.full_like(zero, -torch.inf), none

    def add(self, kept: Kept, call: Call, rows: Rows, *, first: int) -> Kept:
        """Add up, and keep the larger of the largest logits.

        Args:
            kept: what was kept so far.
            call: of the part.
            rows: what a kernel gave for it.
            first: index of its first key.
        """
        *sums, m, argmax = kept
        assert rows.max_logit is not None
        assert rows.argmax is not None
        key = torch.where(rows.argmax < 0, rows.argmax, rows.argmax + first)
        both = (x + y for x, y in zip(sums, self.added(kept, call, rows), strict=True))
        return *both, *strongest((m, argmax), (rows.max_logit, key))

    def added(self, kept: Kept, call: Call, rows: Rows) -> Kept:
        """The sums of the part.

        Args:
            kept: what was kept of the whole.
            call: of the part.
            rows: what a kernel gave for it.
        """
        assert rows.mass is not None
        return rows.out.to(rows.mass.dtype), rows.mass, rows.collision

    def rows(self, call: Call, kept: Kept) -> Rows:
        """Normalised rows.

        Args:
            call: of the whole.
            kept: what was kept of it.
        """
        out, mass, collision, m, argmax = kept
        none = collision == 0
        norm = collision.masked_fill(none, 1.0).sqrt().masked_fill(none, 0.0)
        size = row_size(call._replace(weights=self.weights), mass, norm)
        whole = divided(out, size[..., None]).to(call.v.dtype)
        squares = divided(divided(collision, size), size)
        return Rows(whole, None, None, m, argmax, squares, divided(mass, size))
