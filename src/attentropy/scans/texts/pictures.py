"""A picture as a row of tokens: the patches that a vision transformer cuts it into."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attentropy.core.errors import UnsupportedError
from attentropy.scans.errors import ScanError
from attentropy.scans.texts.reading import TokenReading
from attentropy.scans.texts.sides import Picture, Side

NO_PATCHES = (
    "{name} is not a vision transformer with square patches of a fixed size: its config has no "
    "image_size and patch_size"
)
LARGEST = 1 << 26
"""Pixels of a picture that is opened."""


def tower_of(model: nn.Module) -> nn.Module | None:
    """The part of a model that reads pictures, which may be the model itself; None without one."""
    if getattr(model, "main_input_name", "") == "pixel_values":
        return model
    tower = getattr(model, "vision_model", None)
    return tower if isinstance(tower, nn.Module) else None


def of_picture(
    model: nn.Module, path: Path | None = None, *, settings: Path | None = None
) -> TokenReading:
    """A picture for a vision transformer, or for the vision part of a model such as CLIP.

    The picture is scaled to the size of the model by its shorter side, and its middle is cut out;
    the page shows it as the model sees it.

    Args:
        model: reads pictures.
        path: an image file; None for a drawn one, a disc before a slope of colours.
        settings: the preprocessor_config.json that says mean and deviation of pixels; 0.5 each
            without it.
    """
    tower = tower_of(model)
    if tower is None:
        text = "{image}: {name} reads no pictures"
        raise ScanError(text, name=type(model).__name__)
    size, patch = _sizes(tower)
    pixels = drawn(size) if path is None else opened(path, size)
    mean, deviation = _normal(settings)
    batch = (torch.from_numpy(pixels).permute(2, 0, 1).float() / 255 - mean) / deviation
    parameter = next(tower.parameters())
    batch = batch[None].to(device=parameter.device, dtype=parameter.dtype)
    with torch.no_grad():
        count = _tokens(tower(pixel_values=batch), tower)
    side = size // patch
    before = count - side * side
    if before < 0:
        raise UnsupportedError(NO_PATCHES.format(name=type(tower).__name__))
    return TokenReading(
        tower,
        lambda **options: tower(pixel_values=batch, **options),
        torch.full((count,), -1),
        labels_of(side, before),
        [Side("picture", 0, count)],
        picture=Picture(_png(pixels), side, side, before),
    )


def labels_of(side: int, before: int) -> list[str]:
    """Names of the tokens: those before the patches, then patches by row and column from 1.

    Args:
        side: number of patches in a row and in a column.
        before: number of tokens before them.

    >>> labels_of(2, 1)
    ['[class]', 'row 1, column 1', 'row 1, column 2', 'row 2, column 1', 'row 2, column 2']
    """
    first = ["[class]", *(f"[register {i}]" for i in range(1, before))][:before]
    return first + [f"row {i // side + 1}, column {i % side + 1}" for i in range(side * side)]


def opened(path: Path, size: int) -> np.ndarray:
    """The middle of an image file, [size, size, 3], scaled by its shorter side.

    Args:
        path: of the file.
        size: pixels of a side.
    """
    image = _pillow()
    try:
        with image.open(path) as found:
            if found.width * found.height > LARGEST:
                count = f"{found.width} x {found.height}"
                raise ScanError(
                    "{image} {path} has {count} pixels: too many", path=path, count=count
                )
            picture = found.convert("RGB")
    except FileNotFoundError as error:
        raise ScanError("{image} {path} does not exist", path=path) from error
    except (OSError, image.DecompressionBombError) as error:
        raise ScanError("{image} {path} is not a picture that can be read", path=path) from error
    scale = size / min(picture.size)
    wide, high = (max(size, round(side * scale)) for side in picture.size)
    picture = picture.resize((wide, high), image.Resampling.BICUBIC)
    left, top = (wide - size) // 2, (high - size) // 2
    return np.array(picture.crop((left, top, left + size, top + size)))


def drawn(size: int) -> np.ndarray:
    """A disc before a slope of colours, [size, size, 3].

    Args:
        size: pixels of a side.
    """
    y, x = np.mgrid[0:size, 0:size] / max(1, size - 1)
    slope = np.stack([40 + 90 * x, 90 + 60 * y, 170 - 80 * x], -1)
    inside = (x - 0.62) ** 2 + (y - 0.4) ** 2 < 0.2**2
    return np.where(inside[..., None], np.array([240, 180, 60]), slope).astype(np.uint8)


def _sizes(tower: nn.Module) -> tuple[int, int]:
    config = getattr(tower, "config", None)
    sizes = (getattr(config, "image_size", None), getattr(config, "patch_size", None))
    found = [size[0] if isinstance(size, list | tuple) and size else size for size in sizes]
    plain = [size for size in found if isinstance(size, int) and size > 0]
    if len(plain) != len(sizes):
        raise UnsupportedError(NO_PATCHES.format(name=type(tower).__name__))
    return plain[0], plain[1]


def _tokens(output: Any, tower: nn.Module) -> int:
    hidden = getattr(output, "last_hidden_state", None)
    if isinstance(hidden, Tensor) and hidden.ndim == 3:
        return hidden.shape[1]
    raise UnsupportedError(
        f"{type(tower).__name__} gives no last_hidden_state: load it by AutoModel"
    )


def _normal(settings: Path | None) -> tuple[Tensor, Tensor]:
    """Mean and deviation of the pixels, [3,1,1] each."""
    found: dict[str, Any] = {}
    if settings is not None and settings.is_file():
        try:
            found = json.loads(settings.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ScanError("{model} {path} is not JSON", path=settings) from error
    half = [0.5, 0.5, 0.5]
    mean, deviation = found.get("image_mean") or half, found.get("image_std") or half
    return torch.tensor(mean).view(3, 1, 1), torch.tensor(deviation).view(3, 1, 1)


def _png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    _pillow().fromarray(pixels).save(file, format="PNG", optimize=True)
    return file.getvalue()


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ScanError("{image} needs Pillow: pip install 'attentropy[vision]'") from error
    return Image
