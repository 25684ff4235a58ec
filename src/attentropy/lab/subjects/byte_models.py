"""The models of extrapolate/language: kinds of attention and positions, and scale rules.

Kinds are "RoPE", "ALiBi" and "no positions" with several heads, and "GAU RoPE": a gated unit, which
is one wide head (128, or 64 where the name says so) with queries and keys from one projection.
Rotary waves have base 10000, or 100 where the name says so: then even the slowest turns a good way
within the trained length.
"""

import math
from typing import Any

from torch import Tensor, nn

from attentropy.core.masks import causal
from attentropy.core.scales import LogLength, Mixed, ScaleRule
from attentropy.core.scores import ALiBi
from attentropy.core.weights import Softmax
from attentropy.lab.subjects.small_model import ByteModel
from attentropy.nn.layers.gau import GatedAttentionUnit
from attentropy.nn.layers.multihead import MultiheadAttention
from attentropy.nn.norms import QKNorm
from attentropy.nn.positions.encodings import DistanceBias, Positions
from attentropy.nn.positions.rotary import NTK, RotaryPositions

PLAIN = "1/sqrt d"
TASKS = {"masked": 64, "causal": 128}  # and the length it is trained at


class KeyNorm(QKNorm):
    """Keys of root mean square 1 times a gain; queries as they are."""

    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim, "rms")
        self.q = nn.Identity()

    def queries(self, q: Tensor) -> Tensor:
        """Leave queries as they are.

        Args:
            q: queries.
        """
        return q


def placed(kind: str, heads: int, *, stretch: float = 1.0) -> Positions | None:
    """Positions of a kind of model; rotary ones stretched by NTK.

    Args:
        kind: of model.
        heads: number of heads.
        stretch: factor of NTK; 1 is none.
    """
    if "RoPE" in kind:
        base = 100.0 if kind.endswith("100") else 10_000.0
        return RotaryPositions(base=base, scaling=NTK(stretch) if stretch > 1 else None)
    return DistanceBias(ALiBi()) if kind == "ALiBi" else None


def scale_of(rule: str, task: str, head_dim: int) -> ScaleRule | None:
    """The scale that a model is trained with; None is 1/sqrt d.

    Args:
        rule: name of the rule; "log n" equals 1/sqrt d at the trained length, "log n/d" is the
            documents' rule with kappa = 1, "mixed B" is 1/sqrt d + B log n/d.
        task: "causal" or "masked".
        head_dim: width of a head.
    """
    if rule == "log n":
        return LogLength(head_dim**0.5 / math.log(TASKS[task]))
    if rule == "log n/d":
        return LogLength()
    if rule.startswith("mixed "):
        return Mixed(beta=float(rule.removeprefix("mixed ")))
    return None


def byte_model(
    task: str, kind: str, rule: str, *, width: int, heads: int, layers: int
) -> ByteModel:
    """A byte model of one kind, for one task, with one rule of the scale.

    Args:
        task: "causal" or "masked".
        kind: of attention and positions, as the text above lists them.
        rule: of the scale, or "KeyNorm" or "QK-norm".
        width: of the model.
        heads: number of heads.
        layers: number of blocks.
    """
    gated = kind.startswith("GAU")
    head_dim = width // heads
    if gated:
        head_dim = 64 if kind.startswith("GAU 64") else 128
    common: dict[str, Any] = {
        "mask": causal if task == "causal" else None,
        "scale": scale_of(rule, task, head_dim),
    }

    def attention() -> nn.Module:
        positions = placed(kind, heads)
        if gated:
            return GatedAttentionUnit(
                width, expansion=1, key_dim=head_dim, weights=Softmax(), positions=positions,
                **common,
            )  # fmt: skip
        norms = {"KeyNorm": lambda: KeyNorm(head_dim), "QK-norm": lambda: QKNorm(head_dim)}
        norm = norms[rule]() if rule in norms else None
        return MultiheadAttention(width, heads, positions=positions, qk_norm=norm, **common)

    return ByteModel(width, layers, attention)
