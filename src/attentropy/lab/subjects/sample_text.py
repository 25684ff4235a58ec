"""The model and the text that ship with the package, for experiments on real heads and bytes."""

from importlib.resources import files
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attentropy.core.errors import AttentropyError

if TYPE_CHECKING:
    from attentropy.lab.embedded import EmbeddedModel


def embedded_model() -> "EmbeddedModel":
    """The embedded model; raises AttentropyError if this installation has none."""
    from attentropy.lab.embedded import load_embedded

    try:
        return load_embedded()
    except FileNotFoundError:
        raise AttentropyError("this installation has no embedded model") from None


def sample_tokens() -> Tensor:
    """The sample text as integers below 256; raises AttentropyError if there is none."""
    from attentropy.lab.embedded import sample_bytes

    try:
        text = sample_bytes()
    except FileNotFoundError:
        raise AttentropyError("this installation has no sample text") from None
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def has_embedded() -> bool:
    """True if this installation has the embedded model."""
    return (files("attentropy.lab.embedded") / "data" / "model.safetensors").is_file()
