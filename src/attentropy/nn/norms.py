"""Normalised queries and keys: logits that cannot explode.

With rows of norm sqrt(d) every score is within +-d, so at scale 1/sqrt(d) every logit is within
+-sqrt(d) (8 at d = 64) as long as the gains stay at 1. A LayerNorm before the projections bounds
nothing.
"""

from torch import Tensor, nn

from attentropy.core.errors import ArgumentError
from attentropy.nn._checks import count

KINDS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


class QKNorm(nn.Module):
    """Normalises each query and each key of a head, with learned gains.

    "rms" divides by sqrt(mean x^2 + eps), "layer" takes the mean off first and adds a bias. State
    dict: `q.weight`, `k.weight`, and for "layer" `q.bias`, `k.bias`, each [head_dim].

    Args:
        head_dim: width of a head.
        kind: "rms" or "layer".
        eps: added to the mean square.
    """

    def __init__(self, head_dim: int, kind: str = "rms", *, eps: float = 1e-6) -> None:
        super().__init__()
        count("QKNorm: head_dim", head_dim)
        if kind not in KINDS:
            raise ArgumentError("QKNorm: kind", f"one of {sorted(KINDS)}", repr(kind))
        self.kind = kind
        self.q, self.k = (KINDS[kind](head_dim, eps=eps) for _ in range(2))

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys, normalised over the last dimension.

        Args:
            q: queries [B,H,Q,D].
            k: keys [B,Hk,K,D].
        """
        return self.queries(q), self.keys(k)

    def queries(self, q: Tensor) -> Tensor:
        """Normalised queries, of the dtype they came in.

        Args:
            q: queries [B,H,Q,D].
        """
        normed: Tensor = self.q(q.to(self.q.weight.dtype))
        return normed.to(q.dtype)

    def keys(self, k: Tensor) -> Tensor:
        """Normalised keys, of the dtype they came in.

        Args:
            k: keys [B,Hk,K,D].
        """
        normed: Tensor = self.k(k.to(self.k.weight.dtype))
        return normed.to(k.dtype)
