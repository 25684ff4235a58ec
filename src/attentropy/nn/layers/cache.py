"""Keys and values of the tokens seen so far: a step of generation projects one token only."""

import torch
from torch import Tensor

from attentropy.core.errors import ArgumentError


class KVCache:
    """Keys [B,Hk,K,D] and values [B,Hk,K,Dv], positions already applied; empty at first.

    One cache belongs to one layer. Pass it to every call of the layer: new tokens are appended.
    A frozen cache (see `MultiheadAttention.remember`) is attended to and never changes: the memory
    of cross attention. Gradients flow through what was appended in grad mode.
    """

    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None
        self.frozen = False

    @property
    def length(self) -> int:
        """Number of keys that it holds."""
        return 0 if self.k is None else self.k.shape[2]

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values, and return all of them.

        Args:
            k: new keys [B,Hk,N,D].
            v: new values [B,Hk,N,Dv].
        """
        if self.frozen:
            raise ArgumentError("cache", "not frozen to take more keys", "a frozen cache")
        if self.k is not None and self.v is not None:
            if self.k.shape[0] != k.shape[0]:
                rule = f"{self.k.shape[0]}, as in the cache"
                raise ArgumentError("the batch size", rule, k.shape[0])
            k, v = torch.cat([self.k, k], 2), torch.cat([self.v, v], 2)
        self.k, self.v = k, v
        return k, v

    def freeze(self) -> "KVCache":
        """Accept no more keys; returns the cache."""
        self.frozen = True
        return self

    def crop(self, length: int) -> None:
        """Keep the first `length` keys, to take back rejected tokens.

        Args:
            length: number of keys to keep.
        """
        if not 0 <= length <= self.length:
            raise ArgumentError("length", f"between 0 and {self.length}", length)
        if self.k is not None and self.v is not None:
            self.k, self.v = self.k[:, :, :length], self.v[:, :, :length]

    def reorder(self, entries: Tensor) -> None:
        """Keep these entries of the batch, as beam search does.

        Args:
            entries: indices of batch entries.
        """
        if self.k is not None and self.v is not None:
            self.k, self.v = self.k.index_select(0, entries), self.v.index_select(0, entries)

    def __repr__(self) -> str:
        return f"KVCache({self.length} keys{', frozen' if self.frozen else ''})"
