"""A byte-level causal language model small enough to ship, trained at length 128.

Half of the heads of a layer turn queries and keys by rotary angles (they learn to look at
the previous byte), the other half have no positions (they learn to look things up). All
angles are fast: no wavelength exceeds the trained length, so longer texts show no angle
that training did not, and what changes with length is only the number of keys. Queries and
keys are normalised, which bounds the logits: what a head finds among 128 keys drowns among 1024
unless the scale grows with length.
"""

import json
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError

WEIGHTS, SAMPLE = "model.safetensors", "sample.txt"
ABOUT = "attentropy"
BYTES = 256


@dataclass(frozen=True)
class ModelShape:
    """Sizes of the model, which its weights file holds too.

    Attributes:
        layers: number of layers.
        heads: number of heads of a layer.
        width: of the features.
        expansion: width of the feed-forward part over that of the features.
        rotary_heads: heads that turn queries and keys by rotary angles.
        rotary_base: of the rotary angles.
        sharpness: factor on the normalised queries.
        trained_length: bytes that the model reads in training.
    """

    layers: int = 5
    heads: int = 4
    width: int = 128
    expansion: int = 2
    rotary_heads: int = 2
    rotary_base: float = 20.0
    sharpness: float = 1.4
    trained_length: int = 128

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.width // self.heads


def _frequencies(shape: ModelShape) -> Tensor:
    """[H, D/2]: base^(-2i/D) for the rotary heads, 0 (no turn) for the others."""
    half = shape.head_dim // 2
    turning = shape.rotary_base ** (-torch.arange(half) / half)
    return torch.where(torch.arange(shape.heads)[:, None] < shape.rotary_heads, turning, 0.0)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Attention(nn.Module):
    """Causal multi-head attention through `F.scaled_dot_product_attention`."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        width = shape.width
        self.num_heads, self.sharpness = shape.heads, shape.sharpness
        self.start = nn.Parameter(torch.zeros(width))
        # the bias lets a query ask for the first key whatever the byte: a place to rest
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Features [B, n, width] -> the same shape.

        Args:
            x: features [B, n, width].
            cos: cosines of the rotary angles, [H, n, D/2].
            sin: sines of the rotary angles, [H, n, D/2].
        """
        x = torch.cat([x[:, :1] + self.start, x[:, 1:]], 1)  # the first position is marked
        q, k, v = (
            part(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        # norm without gain: no logit exceeds sharpness * sqrt(D), so length blurs every head
        q, k = (_turn(F.rms_norm(t, t.shape[-1:]), cos, sin) for t in (q, k))
        # looked up on the module at every call, so that watching and steering see it
        out = F.scaled_dot_product_attention(self.sharpness * q, k, v, is_causal=True)
        return self.output(out.transpose(1, 2).flatten(2))


class Feedforward(nn.Module):
    """down(relu(up(x))^2)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.width, shape.expansion * shape.width, bias=False)
        self.down = nn.Linear(shape.expansion * shape.width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Features [..., width] -> the same shape.

        Args:
            x: features [..., width].
        """
        return self.down(F.relu(self.up(x)).square())


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then the same with the feed-forward part."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width)
        self.attention = Attention(shape)
        self.feedforward_norm = nn.RMSNorm(shape.width)
        self.feedforward = Feedforward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Features [B, n, width] -> the same shape.

        Args:
            x: features [B, n, width].
            cos: cosines of the rotary angles, [H, n, D/2].
            sin: sines of the rotary angles, [H, n, D/2].
        """
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feedforward(self.feedforward_norm(x))


class EmbeddedModel(nn.Module):
    """Bytes [B, n] -> logits of the next byte [B, n, 256], for any n."""

    vocabulary = BYTES
    frequencies: Tensor

    def __init__(self, shape: ModelShape | None = None) -> None:
        super().__init__()
        self.shape = shape or ModelShape()
        self.trained_length = self.shape.trained_length
        self.embedding = nn.Embedding(BYTES, self.shape.width)
        self.layers = nn.ModuleList(DecoderLayer(self.shape) for _ in range(self.shape.layers))
        self.norm = nn.RMSNorm(self.shape.width)
        self.head = nn.Linear(self.shape.width, BYTES, bias=False)
        self.register_buffer("frequencies", _frequencies(self.shape), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next byte, [B, n, 256].

        Args:
            tokens: bytes [B, n], integers below 256.
        """
        if tokens.ndim != 2 or tokens.shape[1] < 1:
            raise ArgumentError("tokens", "of shape [B, n] with n >= 1", tuple(tokens.shape))
        x = self.embedding(tokens)
        places = torch.arange(tokens.shape[1], device=x.device)[:, None]
        angles = places * self.frequencies[:, None, :]
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


def save_model(model: EmbeddedModel, path: Path, notes: dict[str, Any]) -> None:
    """Write the weights in float16, with `notes` and the shape as JSON in the metadata.

    Args:
        model: what to write.
        path: of the safetensors file.
        notes: how it was made.
    """
    from safetensors.torch import save_file

    tensors = {name: t.detach().half().contiguous() for name, t in model.state_dict().items()}
    # one entry only: safetensors writes several in random order, and equal runs give equal files
    about = json.dumps({"shape": asdict(model.shape), **notes})
    part = path.with_name(path.name + ".part")
    save_file(tensors, part, metadata={ABOUT: about})
    part.chmod(0o644)  # safetensors makes files that only their owner may read
    part.replace(path)


def load_model(path: Path) -> EmbeddedModel:
    """The model saved by `save_model`, in float32 and eval mode.

    Args:
        path: of a file that `save_model` wrote.
    """
    from safetensors.torch import load_file

    model = EmbeddedModel(ModelShape(**read_notes(path)["shape"]))
    model.load_state_dict({name: weight.float() for name, weight in load_file(path).items()})
    return model.eval()


def read_notes(path: Path) -> dict[str, Any]:
    """The notes and the shape that `save_model` wrote beside the weights.

    Args:
        path: of a file that `save_model` wrote.
    """
    from safetensors import safe_open

    with safe_open(path, framework="pt") as stored:
        return dict(json.loads(stored.metadata()[ABOUT]))


def load_embedded() -> EmbeddedModel:
    """The model shipped with the package, in eval mode.

    >>> model = load_embedded()
    >>> model(torch.tensor([list(b"And God said")])).shape
    torch.Size([1, 12, 256])
    """
    with as_file(files(__package__) / "data" / WEIGHTS) as path:
        return load_model(path)


def embedded_notes() -> dict[str, Any]:
    """Recipe, source and losses of the shipped model."""
    with as_file(files(__package__) / "data" / WEIGHTS) as path:
        return read_notes(path)


def sample_bytes() -> bytes:
    """Text that the shipped model has not seen in training (KJV, Acts; public domain)."""
    return (files(__package__) / "data" / SAMPLE).read_bytes()
