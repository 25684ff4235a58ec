"""How rows of parts become rows of the whole, and gradients of the whole those of parts.

Softmax: rows are row states, and states merge. The share of a part in a row is
w = e^(lse_b - lse), and

    out = sum w out_b,  lse = log sum e^(lse_b),  H = sum w (H_b - log w),  C = sum w^2 C_b,

so that

    d out_b = w dout,  d H_b = w dH,  d C_b = w^2 dC,
    d lse_b = w (dlse + dout . (out_b - out) + dH (H_b - log w - H) + 2 dC (w C_b - C)).

Weights that are no probabilities: output, sum |f| and sum f^2 add up, and gradients pass.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from attentropy.core.call import Call, Rows
from attentropy.core.states import RowState, blind, merge, pivot, read

Results = tuple[Tensor, ...]
Pairs = list[tuple[Tensor, Tensor]]


class Flow(Protocol):
    """Merged results and the gradients that arrive at them."""

    def rows(self, rows: slice) -> "Flow":
        """The same for some of the rows."""
        ...

    def into(self, rows: Rows) -> Pairs:
        """The differentiable results of a part, each with its gradient."""
        ...


class Merging(Protocol):
    """What the ring asks of a way to merge; `constant` are results without gradient."""

    constant: tuple[int, ...]

    def empty(self, shape: tuple[int, ...], width: int, *, like: Tensor) -> Results:
        """The state of rows that saw nothing."""
        ...

    def add(self, state: Results, call: Call, rows: Rows, *, first: int) -> Results:
        """The state with the rows of one more part, whose keys start at `first`."""
        ...

    def read(self, state: Results) -> Results:
        """Results out of a state."""
        ...

    def rows(self, call: Call, results: Results) -> Rows:
        """Results as a kernel gives them; differentiable."""
        ...

    def flow(self, results: Results, grads: tuple[Tensor | None, ...]) -> Flow:
        """What gradients of parts are made of."""
        ...


class Softmax:
    """Results are out, entropy, lse, max_logit, argmax, collision."""

    constant: tuple[int, ...] = (3, 4)

    def empty(self, shape: tuple[int, ...], width: int, *, like: Tensor) -> Results:
        """The identity of `merge`."""
        return blind(shape, width, like=like)

    def add(self, state: Results, call: Call, rows: Rows, *, first: int) -> Results:
        """Merge two row states."""
        return merge(RowState(*state), _state(call, rows, first=first))

    def read(self, state: Results) -> Results:
        """Read the row state."""
        out, stats = read(RowState(*state))
        found = (stats.entropy, stats.lse, stats.max_logit, stats.argmax, stats.collision)
        return out, *found  # type: ignore[return-value]

    def rows(self, call: Call, results: Results) -> Rows:
        """As they are."""
        return Rows(results[0].to(call.v.dtype), *results[1:])

    def flow(self, results: Results, grads: tuple[Tensor | None, ...]) -> Flow:
        """Merged rows and their gradients."""
        return _SoftmaxFlow(*(results[i] for i in (0, 1, 2, 5)), *(grads[i] for i in (0, 1, 2, 5)))


def _state(call: Call, rows: Rows, *, first: int) -> RowState:
    """The row state that a kernel's rows were read from."""
    assert rows.lse is not None
    assert rows.entropy is not None
    assert rows.max_logit is not None
    assert rows.argmax is not None
    visible = call.visible.expand(call.q.shape[:3])
    log_l = (rows.lse - pivot(rows.max_logit)).clamp(min=0.0)
    l = log_l.exp().masked_fill(visible == 0, 0.0)
    return RowState(
        rows.max_logit,
        l,
        (l * (log_l - rows.entropy)).clamp(max=0.0),
        rows.collision * l.square(),
        rows.out.to(l.dtype) * l[..., None],
        visible,
        torch.where(rows.argmax < 0, rows.argmax, rows.argmax + first),
    )


class _SoftmaxFlow(NamedTuple):
    """Merged rows, and the gradients that arrive at them."""

    out: Tensor
    entropy: Tensor
    lse: Tensor
    collision: Tensor
    d_out: Tensor | None
    d_entropy: Tensor | None
    d_lse: Tensor | None
    d_collision: Tensor | None

    def rows(self, rows: slice) -> "_SoftmaxFlow":
        """Some of the rows."""
        parts = (None if x is None else x[:, :, rows] for x in self)
        return _SoftmaxFlow(*parts)  # type: ignore[arg-type]

    def into(self, rows: Rows) -> Pairs:
        """By the formulas above."""
        assert rows.lse is not None
        assert rows.entropy is not None
        out, entropy, lse, collision = (
            x.detach() for x in (rows.out, rows.entropy, rows.lse, rows.collision)
        )
        gap = lse - pivot(self.lse)
        share = gap.exp()
        moved = torch.zeros_like(share) if self.d_lse is None else self.d_lse
        pairs: Pairs = []
        if self.d_out is not None:
            moved = moved + (self.d_out * (out - self.out)).sum(-1)
            pairs.append((rows.out, (share[..., None] * self.d_out).to(out.dtype)))
        if self.d_entropy is not None:
            surprise = -gap.masked_fill(share == 0, 0.0)
            moved = moved + self.d_entropy * (entropy + surprise - self.entropy)
            pairs.append((rows.entropy, share * self.d_entropy))
        if self.d_collision is not None:
            moved = moved + 2 * self.d_collision * (share * collision - self.collision)
            pairs.append((rows.collision, share.square() * self.d_collision))
        return [*pairs, (rows.lse, share * moved)]


class Sums:
    """Results are out, mass, collision, max_logit, argmax of unnormalised weights.

    `norm` takes mass and collision to what each row is multiplied by.
    """

    constant: tuple[int, ...] = (3, 4)

    def __init__(self, norm: str) -> None:
        self.norm = norm

    def empty(self, shape: tuple[int, ...], width: int, *, like: Tensor) -> Results:
        """Zeros."""
        zero = like.new_zeros(shape)
        none = torch.full(shape, -1, dtype=torch.int64, device=like.device)
        return like.new_zeros(*shape, width), zero, zero, torch.full_like(zero, -torch.inf), none

    def add(self, state: Results, call: Call, rows: Rows, *, first: int) -> Results:
        """Add up; of equal logits the lowest key is kept."""
        out, mass, collision, m, argmax = state
        assert rows.mass is not None
        assert rows.max_logit is not None
        assert rows.argmax is not None
        key = torch.where(rows.argmax < 0, rows.argmax, rows.argmax + first)
        lower = (rows.max_logit == m) & (key >= 0) & ((key < argmax) | (argmax < 0))
        newer = (rows.max_logit > m) | lower
        return (
            out + rows.out,
            mass + rows.mass,
            collision + rows.collision,
            torch.maximum(m, rows.max_logit),
            torch.where(newer, key, argmax),
        )

    def read(self, state: Results) -> Results:
        """Sums are the results."""
        return state

    def rows(self, call: Call, results: Results) -> Rows:
        """Normalised."""
        out, mass, collision, m, argmax = results
        size = torch.ones_like(mass)
        if self.norm == "L1":
            size = mass
        elif self.norm == "L2":
            size = collision.masked_fill(collision == 0, 1.0).sqrt()
            size = size.masked_fill(collision == 0, 0.0)
        w = size.masked_fill(size == 0, 1.0).reciprocal().masked_fill(size == 0, 0.0)
        whole = (w[..., None] * out).to(call.v.dtype)
        return Rows(whole, None, None, m, argmax, w.square() * collision, w * mass)

    def flow(self, results: Results, grads: tuple[Tensor | None, ...]) -> Flow:
        """The gradients alone."""
        return _SumsFlow(*grads[:3])


class _SumsFlow(NamedTuple):
    d_out: Tensor | None
    d_mass: Tensor | None
    d_collision: Tensor | None

    def rows(self, rows: slice) -> "_SumsFlow":
        """Some of the rows."""
        return _SumsFlow(*(None if x is None else x[:, :, rows] for x in self))

    def into(self, rows: Rows) -> Pairs:
        """As they are."""
        assert rows.mass is not None
        results = (rows.out, rows.mass, rows.collision)
        pairs = zip(results, self, strict=True)
        return [(x, g.to(x.dtype)) for x, g in pairs if g is not None]
