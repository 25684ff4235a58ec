"""Where a model comes from: this package, a folder or file on disk, a factory, a hub.

Loading is careful: pickled weights and code from a model folder can do anything, and a hub is a
network, so each needs its own permission.
"""

import importlib
import os
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from attentropy.core.formats import printable
from attentropy.models.losses.probes import position_limit
from attentropy.models.rope.rotary import exact_angles
from attentropy.models.trained import TrainedLength, trained_length
from attentropy.scans.errors import ScanError
from attentropy.scans.loading import checkpoints
from attentropy.scans.loading.gguf_files import read_once
from attentropy.scans.loading.names import name_of
from attentropy.scans.loading.special import Special, special_of
from attentropy.scans.schema import ScannedModel

FACTORY = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class Permissions:
    """What the user allowed; nothing by default.

    Attributes:
        pickle: load pickled weights, which can run code.
        remote_code: run code that a model folder brings.
        download: fetch a model from the hub if it is not on this machine.
    """

    pickle: bool = False
    remote_code: bool = False
    download: bool = False


@dataclass(frozen=True)
class Placement:
    """Precision and device, by torch's names for them.

    Attributes:
        dtype: precision of weights and activations.
        device: where modules run.
        device_map: where weights stay until a module runs: "auto", "cpu" or "disk"; None loads
            all of them to the device.
        tensor_parallel: the processes of the job share the heads of every layer.
    """

    dtype: str = "float32"
    device: str = "cpu"
    device_map: str | None = None
    tensor_parallel: bool = False

    @classmethod
    def of(cls, tensor: Tensor) -> "Placement":
        """Where and how `tensor` is kept."""
        return cls(str(tensor.dtype).removeprefix("torch."), str(tensor.device))


@dataclass(frozen=True)
class Source:
    """A loaded model, and what the scan needs to know about it.

    Attributes:
        encode: text to token ids; None if the model came without a tokenizer.
        decode: one token id to text, for labels.
        call: the Python that loads the same model, for the methods page.
        special: what the tokenizer adds around a text.
    """

    model: nn.Module
    about: ScannedModel
    tokenizer: str
    encode: Callable[[str], list[int]] | None
    decode: Callable[[int], str]
    call: str
    special: Special = field(default_factory=Special)


Count = Callable[[int, int], None]


def load(
    name: str | None, placement: Placement, permissions: Permissions, *, count: Count | None = None
) -> Source:
    """Find out what `name` means and load it; None is the embedded model.

    Args:
        name: a folder, a .gguf file, package.module:factory, a name on the hub, or None.
        placement: precision and device.
        permissions: what may be loaded and run.
        count: receives how many tensors of a GGUF file are read, and how many there are.
    """
    path = Path(name or "")
    if name is not None and (path.suffix == ".gguf" or path.exists()):
        return _from_disk(path, placement, permissions, count)
    if placement.device_map is not None and (name is None or FACTORY.fullmatch(name)):
        raise ScanError("{device_map} takes a transformers folder or a GGUF file as {model}")
    if placement.tensor_parallel and (name is None or FACTORY.fullmatch(name)):
        raise ScanError("{tensor_parallel} takes a transformers folder as {model}")
    if name is None:
        return _embedded(placement)
    if FACTORY.fullmatch(name):
        return _from_factory(name, placement)
    if permissions.download and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        return _transformers(name, {}, placement, permissions)
    hint = "" if permissions.download else " ({download} would look for it on the hub)"
    raise ScanError("{model} {name} does not exist" + hint, name=name)


def trained_on_disk(name: str | None) -> int | None:
    """The trained length according to the files of a model, without its weights; None if unknown.

    Args:
        name: as `load` takes it.
    """
    path = Path(name or "")
    if path.suffix == ".gguf" and path.is_file():
        checkpoints.check_gguf(path)
        known = trained_length(None, gguf=path)
    elif name and (path / "config.json").is_file():
        known = trained_length(SimpleNamespace(**checkpoints.config_of(path)))
    else:
        return None
    return None if known is None else known.tokens


def place(model: nn.Module, placement: Placement) -> nn.Module:
    """The model in evaluation mode, in the precision and on the device asked for.

    Args:
        model: the model.
        placement: precision and device.
    """
    import torch

    try:
        device, dtype = torch.device(placement.device), getattr(torch, placement.dtype)
        if device.type == "meta":
            raise RuntimeError("it holds no numbers")
        with exact_angles(model):
            return model.to(device=device, dtype=dtype).eval()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        text = "{device} {name} cannot be used: {reason}"
        raise ScanError(text, name=placement.device, reason=reason) from error


def byte_label(token: int) -> str:
    """A byte as text."""
    return bytes([token]).decode("latin-1") if 0 <= token < 256 else str(token)


def _embedded(placement: Placement) -> Source:
    from attentropy.lab.embedded import load_embedded

    model = place(load_embedded(), placement)
    about = describe_model(model, "attentropy-embedded", "embedded", placement)
    about.source = "embedded"
    about.note = "byte-level, shipped with attentropy"
    call = "from attentropy.lab.embedded import load_embedded\nmodel = load_embedded()"
    return Source(model, about, "bytes", byte_ids, byte_label, call)


def byte_ids(text: str) -> list[int]:
    """The ids of a byte-level model: the bytes of the text in UTF-8."""
    return list(text.encode())


def _from_factory(name: str, placement: Placement) -> Source:
    module_name, _, attribute = name.partition(":")
    factory = _import(module_name, attribute, name)
    try:
        model = factory()
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {error}"
        raise ScanError("{model} {name} failed: {why}", name=name, why=why) from error
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        text = "{model} {name} must return a torch.nn.Module, got {kind}"
        raise ScanError(text, name=name, kind=kind)
    model = place(model, placement)
    about = describe_model(model, name, "factory", placement)
    call = f"from {module_name} import {attribute}\nmodel = {attribute}()"
    return Source(model, about, "bytes", byte_ids, byte_label, call)


def _import(module_name: str, attribute: str, name: str) -> Callable[[], Any]:
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        factory = getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        text = "{model} {name}: there is no module {module}"
        raise ScanError(text, name=name, module=error.name) from error
    except AttributeError as error:
        text = "{model} {name}: {module} has no {attribute}"
        raise ScanError(text, name=name, module=module_name, attribute=attribute) from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        text = "{model} {name}: importing {module} failed: {reason}"
        raise ScanError(text, name=name, module=module_name, reason=reason) from error
    if not callable(factory):
        text = "{model} {name}: {attribute} is not callable"
        raise ScanError(text, name=name, attribute=attribute)
    return factory


def _from_disk(
    path: Path, placement: Placement, permissions: Permissions, count: Count | None
) -> Source:
    if path.suffix == ".gguf":
        checkpoints.check_gguf(path)
        where, more = str(path.parent), {"gguf_file": path.name}
    else:
        checkpoints.check_folder(
            path, allow_pickle=permissions.pickle, allow_code=permissions.remote_code
        )
        where, more = str(path), {}
    with read_once() if more else nullcontext():
        source = _transformers(where, more, placement, permissions, count)
    source.about.name = printable(name_of(path))
    source.about.source = printable(str(path))
    return source


def _transformers(
    where: str,
    more: dict[str, str],
    placement: Placement,
    permissions: Permissions,
    count: Count | None = None,
) -> Source:
    from attentropy.scans.loading.pretrained import load_model, load_tokenizer

    options: dict[str, Any] = {
        **more,
        "local_files_only": not permissions.download,
        "trust_remote_code": permissions.remote_code,
    }
    model = load_model(
        where,
        dtype=placement.dtype,
        pickle=permissions.pickle,
        options=options,
        count=count,
        device_map=placement.device_map,
        device=placement.device,
        tensor_parallel=placement.tensor_parallel,
    )
    tokenizer = load_tokenizer(where, options=options)
    spread = placement.device_map is not None or placement.tensor_parallel
    model = model.eval() if spread else place(model, placement)
    gguf = Path(where) / more["gguf_file"] if more else None
    about = describe_model(model, where, "gguf" if more else "transformers", placement)
    _say_trained(about, trained_length(model, tokenizer, gguf))
    if more:
        about.note = "weights dequantised from GGUF"
    auto = _auto(model)
    extra = "".join(f", {key}={value!r}" for key, value in more.items())
    call = f"from transformers import {auto}\nmodel = {auto}.from_pretrained({where!r}{extra})"
    if tokenizer is None:
        return Source(model, about, "none", None, str, call)
    return Source(
        model,
        about,
        type(tokenizer).__name__,
        lambda text: list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]),
        lambda token: str(tokenizer.decode([token])),
        call,
        special_of(tokenizer),
    )


def _auto(model: nn.Module) -> str:
    """The class of transformers that loads such a model."""
    name = type(model).__name__
    if name.endswith("ForConditionalGeneration"):
        return "AutoModelForSeq2SeqLM"
    return "AutoModelForCausalLM" if name.endswith(("ForCausalLM", "LMHeadModel")) else "AutoModel"


def describe_model(model: nn.Module, name: str, kind: Any, placement: Placement) -> ScannedModel:
    """The record of a loaded model.

    Args:
        model: the model.
        name: how people call it.
        kind: where it comes from.
        placement: precision and device.
    """
    found = ScannedModel(
        name=name,
        source=name,
        kind=kind,
        architecture=type(model).__name__,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        dtype=placement.dtype,
        device=placement.device,
        device_map=placement.device_map,
        maximum_length=position_limit(model),
    )
    _say_trained(found, trained_length(model))
    return found


def _say_trained(about: ScannedModel, known: TrainedLength | None) -> None:
    """The trained length and its source; a table of positions ends it where it is shorter."""
    if known is None:
        return
    about.trained_length, about.trained_source = known.tokens, known.source
    if about.maximum_length is not None and about.maximum_length < known.tokens:
        about.trained_length = about.maximum_length
        about.trained_source = "the number of positions of the model"
