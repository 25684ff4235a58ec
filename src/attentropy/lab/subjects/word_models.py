"""A small GAU-alpha and the optimiser of its training, after the authors' published code.

https://github.com/ZhuiyiTechnology/GAU-alpha: gated units only, no feed-forward layers, no biases,
gains of queries and keys without offsets; the sum of input and unit is divided by its root mean
square (norm after, without gain); embeddings are also the last layer; weights begin with standard
deviation depth^(-1/3) / sqrt(width). Trained by LAMB without correction of its first steps.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.core.results import Stats
from attentropy.core.scales import ScaleRule
from attentropy.core.weights import Softmax
from attentropy.nn.layers.gau import GatedAttentionUnit
from attentropy.nn.positions.rotary import RotaryPositions


class WordModel(nn.Module):
    """Pieces [B,N] -> logits [B,N,vocabulary], and the statistics of every layer.

    Args:
        vocabulary: number of pieces.
        width: of the residual stream.
        layers: number of gated units.
        keys: width of queries and keys.
    """

    def __init__(self, vocabulary: int, *, width: int, layers: int, keys: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.units = nn.ModuleList(
            GatedAttentionUnit(
                width, key_dim=keys, weights=Softmax(), positions=RotaryPositions(), bias=False
            )
            for _ in range(layers)
        )
        for unit in self.units:
            unit.offset.requires_grad_(False)
        gain = layers ** (-1 / 3)
        for weight in self.parameters():
            if weight.dim() == 2 and weight.requires_grad and weight.shape[0] > 2:
                _begin(weight, gain if weight is not self.embedding.weight else 1.0)

    def read(self, tokens: Tensor) -> tuple[Tensor, list[Stats]]:
        """Features [B,N,width] before the last layer, and statistics.

        Args:
            tokens: ids [B,N].
        """
        x, seen = _normed(self.embedding(tokens)), []
        for unit in self.units:
            out, stats = unit(x)
            x = _normed(x + out)
            seen.append(stats)
        return x, seen

    def name(self, features: Tensor) -> Tensor:
        """Logits [..., vocabulary] of features.

        Args:
            features: what read() gave, at the places that are asked for.
        """
        return F.linear(features, self.embedding.weight)

    def set_scale(self, scale: ScaleRule | None) -> None:
        """Give every unit this scale.

        Args:
            scale: None is 1/sqrt d.
        """
        for unit in self.units:
            unit.scale = scale  # type: ignore[assignment]


def _begin(weight: Tensor, gain: float) -> None:
    """A normal distribution cut at two deviations, of standard deviation gain / sqrt(fan-in)."""
    deviation = gain / weight.shape[1] ** 0.5 / 0.8796
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


def _normed(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], eps=1e-12)


class Lamb(torch.optim.Optimizer):
    """w -= rate (|w| / |u|) u, u = m / (sqrt(v) + eps) + decay w: Adam, as long as the weight.

    m and v are the means of gradients and of their squares, not corrected for the first steps
    (You et al., 2020, with the settings of GAU-alpha). Vectors keep |w| / |u| = 1 and no decay.

    Args:
        parameters: to train.
        rate: of learning.
        betas: memories of the two means.
        eps: keeps the division finite.
        decay: of weights.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        rate: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        decay: float = 0.01,
    ) -> None:
        super().__init__(parameters, {"lr": rate, "betas": betas, "eps": eps, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Change every weight once.

        Args:
            closure: not supported.
        """
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._change(weight, group)

    def _change(self, weight: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["mean"], state["square"] = torch.zeros_like(weight), torch.zeros_like(weight)
        first, second = group["betas"]
        state["mean"].lerp_(weight.grad, 1 - first)
        state["square"].mul_(second).addcmul_(weight.grad, weight.grad, value=1 - second)
        update = state["mean"] / (state["square"].sqrt() + group["eps"])
        ratio = 1.0
        if weight.dim() > 1 and weight.shape[0] > 2:
            update.add_(weight, alpha=group["decay"])
            size, turn = weight.norm().item(), update.norm().item()
            ratio = size / turn if size > 0 and turn > 0 else 1.0
        weight.add_(update, alpha=-group["lr"] * ratio)
