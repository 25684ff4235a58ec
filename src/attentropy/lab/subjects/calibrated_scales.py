"""Plans of calibrate() for the lab's models, as scales of their layers.

calibrate() steers what it measures, and steer() changes calls of F.scaled_dot_product_attention,
not those of attend(). So a copy of the model that makes such calls is measured, and the factors of
its plan multiply 1/sqrt d in the model itself.
"""

import copy
from dataclasses import dataclass

from torch import Tensor, nn

from attentropy.lab.subjects.opened_layers import CalledOnTorch
from attentropy.lab.subjects.small_model import TransformerBlock
from attentropy.models.calibrate import calibrate
from attentropy.models.steer.changes import Planned


@dataclass(frozen=True)
class Calibrated:
    """Factor(n) / sqrt(d), the factors of each head those of a plan."""

    factors: Planned

    def __call__(self, head_dim: int, visible: Tensor) -> Tensor:
        return self.factors(head_dim, visible) * head_dim**-0.5


def on_torch(model: nn.Module) -> nn.Module:
    """A copy of the model whose blocks call torch's attention.

    Args:
        model: made of TransformerBlock.
    """
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if isinstance(module, TransformerBlock):
            module.attention = CalledOnTorch(module.attention)  # type: ignore[arg-type]
    return twin


def calibrated(model: nn.Module, batch: Tensor, lengths: list[int]) -> list[Calibrated]:
    """Scales, one for each block, that hold the entropy of each head at the first length.

    Args:
        model: made of TransformerBlock.
        batch: what the model reads, as long as the longest length.
        lengths: increasing.
    """
    plan = calibrate(on_torch(model), batch, lengths)
    rules = (plan.rule(f"{name}.attention") for name in _blocks(model))
    return [Calibrated(rule) for rule in rules if rule is not None]


def _blocks(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, TransformerBlock)]
