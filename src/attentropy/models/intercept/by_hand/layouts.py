"""Logits that a model made by hand, in whatever shape, as rows [B,H,Q,K]."""

from dataclasses import dataclass

from torch import Tensor, nn

from attentropy.models.intercept.arguments import own_lengths
from attentropy.models.intercept.candidates import heads_of


@dataclass(frozen=True)
class LogitsLayout:
    """How logits of a shape become [B,H,Q,K], and back.

    Attributes:
        order: the dimensions in the order B, H, Q, K; several, or none, may make one of these.
        sizes: of the logits in that order.
        shape: [B,H,Q,K].
        is_plain: Q are the queries of one sequence, and nothing else.
    """

    order: tuple[int, ...]
    sizes: tuple[int, ...]
    shape: tuple[int, int, int, int]
    is_plain: bool

    def rows(self, x: Tensor) -> Tensor:
        """The logits as [B,H,Q,K].

        Args:
            x: in the shape that the model has made.
        """
        if tuple(x.shape) == self.shape and self.order == (0, 1, 2, 3):
            return x
        return x.permute(self.order).reshape(self.shape)

    def back(self, x: Tensor) -> Tensor:
        """Rows [B,H,Q,K] in the shape of the logits.

        Args:
            x: what `rows` gave, changed.
        """
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        return x.reshape(self.sizes).permute(inverse)


def layout_of(module: nn.Module, logits: Tensor, dim: int) -> LogitsLayout:
    """Which dimension of the logits is which.

    Where the module does not say how many heads it has, they come before the queries, unless the
    size there is that of a sequence and the next is not, as in [B,Q,H,K].

    Args:
        module: computes the softmax; its number of heads tells where they are.
        logits: of the softmax.
        dim: the dimension of the keys.
    """
    last = dim % logits.dim()
    others = [d for d in range(logits.dim()) if d != last]
    count, shape = heads_of(module), logits.shape
    if logits.dim() == 3 or logits.dim() == 2:
        return _side_by_side(others, last, shape, count)
    spots = [d for d in others[1:] if shape[d] == count] or [_heads_at(others, shape, shape[last])]
    batch, head = others[0], spots[0]
    queries = [d for d in others[1:] if d != head]
    order = (batch, head, *queries, last)
    rows = 1
    for d in queries:
        rows *= shape[d]
    sizes = tuple(shape[d] for d in order)
    return LogitsLayout(
        order, sizes, (shape[batch], shape[head], rows, shape[last]), len(queries) == 1
    )


def _heads_at(others: list[int], shape: tuple[int, ...], keys: int) -> int:
    """The dimension of the heads of logits in a module that does not say how many it has."""
    lengths = own_lengths() or {keys}
    before, after = others[1:3]
    is_after = shape[before] in lengths and shape[after] not in {*lengths, keys}
    return after if is_after else before


def _side_by_side(
    others: list[int], last: int, shape: tuple[int, ...], count: int | None
) -> LogitsLayout:
    """[B * H,Q,K], or [Q,K] of one head."""
    order = (*others, last)
    sizes = tuple(shape[d] for d in order)
    both, queries = (1, sizes[0]) if len(sizes) == 2 else sizes[:2]
    heads = count if count is not None and both % count == 0 else 1
    return LogitsLayout(order, sizes, (both // heads, heads, queries, sizes[-1]), True)
