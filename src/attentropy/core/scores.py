"""How well does a key match a query? Scores, and what is added to their logits.

A score prepares q and k so that kernels need only two products: q . k, or vector . tanh(q + k).

    Dot       q . k
    Cosine    q . k / (|q| |k|)
    Additive  vector . tanh(query_weight q + key_weight k)
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from attentropy.core.errors import ArgumentError, ArgumentTypeError


class Prepared(NamedTuple):
    """Queries and keys ready for the product.

    Attributes:
        q: queries, as kernels multiply them.
        k: keys.
        vector: [1 or H, D] for the additive product; None is the dot product.
    """

    q: Tensor
    k: Tensor
    vector: Tensor | None = None


class Score(Protocol):
    """What attend() asks of a score."""

    def prepare(self, q: Tensor, k: Tensor) -> Prepared:
        """Queries and keys as the kernels multiply them; differentiable.

        Args:
            q: queries [B,H,Q,D].
            k: keys [B,Hk,K,D].
        """
        ...

    def default_scale(self, head_dim: int) -> float:
        """The logit multiplier where the caller gives no scale.

        Args:
            head_dim: D.
        """
        ...


@dataclass(frozen=True)
class Dot:
    """q . k; its own scale is 1 / sqrt(d)."""

    def prepare(self, q: Tensor, k: Tensor) -> Prepared:
        """Queries and keys as they are.

        Args:
            q: queries [B,H,Q,D].
            k: keys [B,Hk,K,D].
        """
        return Prepared(q, k)

    def default_scale(self, head_dim: int) -> float:
        """1 / sqrt(d).

        Args:
            head_dim: D.
        """
        return head_dim**-0.5


@dataclass(frozen=True)
class Cosine:
    """q . k / (|q| |k|), with |x| = sqrt(sum x^2 + eps^2); its own scale is 10.

    Finite gradients at zero norm, bounded by 1 / eps.

    Attributes:
        eps: what keeps the norm off zero.
    """

    eps: float = 1e-6

    def __post_init__(self) -> None:
        if not (isinstance(self.eps, int | float) and 0 < self.eps < math.inf):
            raise ArgumentError("Cosine: eps", "positive and finite", self.eps)

    def prepare(self, q: Tensor, k: Tensor) -> Prepared:
        """Queries and keys divided by their norms.

        Args:
            q: queries [B,H,Q,D].
            k: keys [B,Hk,K,D].
        """
        return Prepared(unit(q, eps=self.eps), unit(k, eps=self.eps))

    def default_scale(self, head_dim: int) -> float:
        """10, so that logits lie within +-10.

        Args:
            head_dim: D, which it does not depend on.
        """
        return 10.0


def unit(x: Tensor, *, eps: float) -> Tensor:
    """x / sqrt(sum x^2 + eps^2) over the last dimension, in float32 or better.

    Args:
        x: vectors [...,D].
        eps: added to the norm in quadrature.
    """
    wide = x if x.dtype == torch.float64 else x.float()
    if not x.shape[-1]:
        return x
    # squares overflow beyond 1e19 in float32; the result does not depend on this divisor
    size = wide.detach().abs().amax(-1, keepdim=True).clamp(min=1.0)
    wide = wide / size
    norm = wide.square().sum(-1, keepdim=True) + (eps / size) ** 2
    return (wide * norm.rsqrt()).to(x.dtype)


@dataclass(frozen=True, eq=False)
class Additive:
    """vector . tanh(query_weight q + key_weight k); its own scale is 1.

    Attributes:
        query_weight: [hidden, D], or [H, hidden, D] for weights of each head.
        key_weight: [hidden, D], or [Hk, hidden, D].
        vector: [hidden], or [H, hidden].
    """

    query_weight: Tensor
    key_weight: Tensor
    vector: Tensor

    def __post_init__(self) -> None:
        for name in ("query_weight", "key_weight", "vector"):
            check_real(f"Additive: {name}", getattr(self, name))
        hidden = self.vector.shape[-1] if self.vector.dim() else 0
        for name in ("query_weight", "key_weight"):
            shape = getattr(self, name).shape
            if len(shape) not in (2, 3) or shape[-2] != hidden:
                rule = f"[hidden,D] or [heads,hidden,D] with hidden = {hidden}, as in vector"
                raise ArgumentError(f"Additive: {name}", rule, list(shape))
        if self.vector.dim() not in (1, 2):
            rule = "of shape [hidden] or [H,hidden]"
            raise ArgumentError("Additive: vector", rule, list(self.vector.shape))

    def prepare(self, q: Tensor, k: Tensor) -> Prepared:
        """Projected queries and keys, of width hidden.

        Args:
            q: queries [B,H,Q,D].
            k: keys [B,Hk,K,D].
        """
        q = self._project("query_weight", q)
        k = self._project("key_weight", k)
        vector = self.vector if self.vector.dim() == 2 else self.vector[None]
        if vector.shape[0] not in (1, q.shape[1]):
            rule = f"of shape [hidden] or [H,hidden] with H = {q.shape[1]}"
            raise ArgumentError("Additive: vector", rule, list(self.vector.shape))
        check_device("Additive: vector", vector, q.device)
        return Prepared(q, k, vector)

    def default_scale(self, head_dim: int) -> float:
        """1: the score is bounded by the sum of |vector| already.

        Args:
            head_dim: D, which it does not depend on.
        """
        return 1.0

    def _project(self, name: str, x: Tensor) -> Tensor:
        weight: Tensor = getattr(self, name)
        heads = weight.shape[0] if weight.dim() == 3 else 1
        if weight.shape[-1] != x.shape[-1] or heads not in (1, x.shape[1]):
            rule = f"[hidden,D] or [heads,hidden,D] with D = {x.shape[-1]}, heads = {x.shape[1]}"
            raise ArgumentError(f"Additive: {name}", rule, list(weight.shape))
        check_device(f"Additive: {name}", weight, x.device)
        return x @ weight.to(x.dtype).mT


def check_real(name: str, x: object) -> None:
    """Raise unless it is a tensor of real numbers.

    Args:
        name: of the argument, for messages.
        x: the argument of the caller.
    """
    if not isinstance(x, Tensor):
        raise ArgumentTypeError(name, "a tensor", type(x).__name__)
    if x.is_complex() or x.dtype == torch.bool:
        raise ArgumentTypeError(f"{name}.dtype", "that of real numbers", x.dtype)


def check_device(name: str, x: Tensor, device: torch.device) -> None:
    """Raise unless x is where the queries are.

    Args:
        name: of the argument, for the message.
        x: a tensor.
        device: of the queries.
    """
    if x.device != device:
        raise ArgumentError(f"{name}.device", f"that of q, {device}", x.device)


@dataclass(frozen=True, eq=False)
class Relative:
    """A bias that depends on the distance of the key from the query: table[:, clip(j - i)].

    Column R + d serves distance d = j - i; distances beyond R use the last column of their side.

    Attributes:
        table: [2R+1] or [H, 2R+1].
    """

    table: Tensor

    def __post_init__(self) -> None:
        check_real("Relative: table", self.table)
        shape = self.table.shape
        if len(shape) not in (1, 2) or shape[-1] % 2 == 0:
            rule = "of shape [2R+1] or [H,2R+1], an odd number of distances"
            raise ArgumentError("Relative: table", rule, list(shape))

    def rows(self, heads: int) -> Tensor:
        """The table as [1 or H, 2R+1].

        Args:
            heads: H, which the table must fit.
        """
        table = self.table if self.table.dim() == 2 else self.table[None]
        if table.shape[0] not in (1, heads):
            rule = f"of shape [2R+1] or [H,2R+1] with H = {heads}"
            raise ArgumentError("Relative: table", rule, list(self.table.shape))
        return table


def by_distance(slopes_H: Tensor, length: int, *, dtype: torch.dtype) -> Tensor:
    """-slope * |d| for distances below `length`, a relative table [H, 2 length - 1].

    Args:
        slopes_H: those of ALiBi.
        length: the larger of the numbers of queries and keys.
        dtype: of the table.
    """
    reach = max(0, length - 1)
    distance = torch.arange(-reach, reach + 1, device=slopes_H.device)
    return -slopes_H.to(dtype)[:, None] * distance.abs()


@dataclass(frozen=True, eq=False)
class ALiBi:
    """A bias of -slope * |i - j|.

    Attributes:
        slopes: [H]; None is 2^(-8 h / H), h = 1..H.
    """

    slopes: Tensor | None = None

    def __post_init__(self) -> None:
        if self.slopes is not None:
            check_real("ALiBi: slopes", self.slopes)

    def of_heads(
        self, heads: int, *, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Slopes as [H]; 2^(-8 h / H), h = 1..H, if none were given.

        Args:
            heads: H.
            device: of slopes that were not given.
            dtype: of slopes that were not given.
        """
        if self.slopes is None:
            head = torch.arange(1, heads + 1, device=device, dtype=dtype)
            return torch.exp2(-8 * head / max(heads, 1))
        if list(self.slopes.shape) != [heads]:
            raise ArgumentError("ALiBi: slopes", f"of shape [H] = [{heads}]", self._shape())
        return self.slopes

    def _shape(self) -> list[int]:
        return list(self.slopes.shape) if self.slopes is not None else []
