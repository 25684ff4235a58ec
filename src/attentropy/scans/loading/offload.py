"""Weights that are not kept in memory: accelerate reads those of a module when it runs.

A safetensors file is mapped into memory and read in place. A GGUF file is converted first, a few
layers at a time, into safetensors files of the precision asked for in a temporary folder.
"""

import json
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attentropy.scans.errors import ScanError

KINDS = ("auto", "cpu", "disk")
ROOM = 1 << 28  # bytes of converted weights in memory at a time


def check_kind(kind: str) -> None:
    """Raise ScanError unless accelerate is here and `kind` is one of KINDS.

    Args:
        kind: "auto", "cpu" or "disk".
    """
    if kind not in KINDS:
        raise ScanError("{device_map} must be auto, cpu or disk, got {kind!r}", kind=kind)
    if find_spec("accelerate") is None:
        raise ScanError("{device_map} needs accelerate: pip install 'attentropy[trainer]'")


def device_map(empty: nn.Module, kind: str, device: str) -> str | dict[str, str]:
    """Where `from_pretrained` puts each module.

    With "cpu" and "disk", all modules with parameters but the smallest stay there until they run
    on `device`. "auto" leaves it to accelerate: GPUs first, then memory, then disk.

    Args:
        empty: the model on the meta device.
        kind: "auto", "cpu" or "disk".
        device: where modules run.
    """
    if kind == "auto":
        return "auto"
    if kind == device:
        return {"": device}
    sizes = {
        name: sum(p.numel() for p in module.parameters(recurse=False))
        for name, module in empty.named_modules()
        if name and _has_own(module)
    }
    found = {name: kind if size else device for name, size in sizes.items()}
    found[min((n for n, size in sizes.items() if size), key=sizes.__getitem__)] = device
    return found


def _has_own(module: nn.Module) -> bool:
    return any(True for part in (module.parameters, module.buffers) for _ in part(recurse=False))


def empty_model(auto: Any, config: Any) -> nn.Module:
    """A model without weights.

    Args:
        auto: a class of transformers such as AutoModelForCausalLM.
        config: of the model.
    """
    with torch.device("meta"):
        model: nn.Module = auto.from_config(config)
    return model


@contextmanager
def scratch() -> Iterator[Callable[[Any], str]]:
    """A temporary folder that lives as long as the model that is loaded inside the block.

    Gives its path, and a function that keeps it as long as the model; otherwise it is deleted after
    the block.
    """
    folder = tempfile.mkdtemp(prefix="attentropy-weights-")
    kept = []

    def keep(model: Any) -> str:
        if model is not None:
            kept.append(weakref.finalize(model, shutil.rmtree, folder, True))
        return folder

    try:
        yield keep
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


def converted(file: Path, folder: str, *, empty: nn.Module, config: Any, dtype: torch.dtype) -> str:
    """Write the weights of a GGUF file as safetensors files beside a config; returns the folder.

    Args:
        file: the GGUF file.
        folder: where the files go.
        empty: the model without weights, for the names of its parameters.
        config: of the model.
        dtype: precision of the result.
    """
    from gguf import GGUFReader
    from safetensors.torch import save_file

    tensors = [(one.name, int(one.n_elements)) for one in GGUFReader(str(file)).tensors]
    where: dict[str, str] = {}
    for number, names in enumerate(_blocks(tensors, ROOM // dtype.itemsize)):
        shard = f"model-{number:05d}.safetensors"
        weights = _weights(file, set(names), empty, dtype)
        save_file(weights, Path(folder) / shard, metadata={"format": "pt"})
        where |= dict.fromkeys(weights, shard)
    index = {"metadata": {}, "weight_map": where}
    (Path(folder) / "model.safetensors.index.json").write_text(json.dumps(index))
    config.save_pretrained(folder)
    return folder


def _blocks(tensors: Sequence[tuple[str, int]], room: int) -> Iterator[list[str]]:
    """Names of tensors in groups: whole layers, as many as have room together."""
    layers: dict[str, list[tuple[str, int]]] = {}
    for name, size in tensors:
        found = re.match(r".*?\.\d+\.", name)
        layers.setdefault(found[0] if found else name, []).append((name, size))
    group: list[str] = []
    taken = 0
    for layer in layers.values():
        size = sum(size for _, size in layer)
        if group and taken + size > room:
            yield group
            group, taken = [], 0
        group, taken = group + [name for name, _ in layer], taken + size
    if group:
        yield group


def _weights(
    file: Path, names: set[str], empty: nn.Module, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Some tensors of a GGUF file as transformers converts and names them."""
    from transformers import modeling_gguf_pytorch_utils as home

    bar = home.tqdm
    home.tqdm = lambda tensors, **_: [one for one in tensors if one.name in names]
    try:
        found = home.load_gguf_checkpoint(
            str(file), return_tensors=True, model_to_load=empty, torch_dtype=dtype
        )
    finally:
        home.tqdm = bar
    return {name: weight.contiguous() for name, weight in found["tensors"].items()}
