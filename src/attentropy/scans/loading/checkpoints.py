"""What lies in a model folder, looked at before anything of it is loaded or run."""

import json
from pathlib import Path
from typing import Any

from torch import nn

from attentropy.scans.schema import ScanError

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def check_folder(path: Path, *, allow_pickle: bool, allow_code: bool) -> None:
    """A transformers folder with weights that are whole and safe to load, or a ScanError."""
    if not path.is_dir():
        raise ScanError(f"MODEL {path} is neither a folder nor a .gguf file")
    config = _config(path)
    if config.get("auto_map") and not allow_code:
        raise ScanError(
            f"MODEL {path} brings its own code, which is not run without --trust-remote-code"
        )
    shards = sorted(path.glob("*.safetensors"))
    if shards:
        _check_index(path)
        for shard in shards:
            check_safetensors(shard)
        return
    pickled = sorted(file for pattern in PICKLED for file in path.glob(pattern))
    if not pickled:
        raise ScanError(f"MODEL {path} has no weights: there is no .safetensors file")
    if not allow_pickle:
        raise ScanError(
            f"MODEL {path}: {pickled[0].name} is pickled and could run code; "
            "--allow-pickle loads it all the same"
        )


def check_safetensors(path: Path) -> None:
    """The file's header is sound and all of its tensors are there."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise ScanError(f"{path} is corrupt or truncated: {error}") from error


def check_gguf(path: Path) -> None:
    """The file is there and begins as GGUF files do."""
    if not path.is_file():
        raise ScanError(f"MODEL {path} does not exist")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ScanError(f"MODEL {path} is not a GGUF file")
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise ScanError("GGUF files need the extra: pip install 'attentropy[gguf]'") from error


def trained_length(model: nn.Module) -> int | None:
    """The length that the model was trained at, as far as its attributes or config say."""
    own = getattr(model, "trained_length", None)
    if isinstance(own, int):
        return own
    config = _text_config(model)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    original = rope.get("original_max_position_embeddings") if isinstance(rope, dict) else None
    known = (original, getattr(config, "max_position_embeddings", None))
    found = next((value for value in known if isinstance(value, int) and value > 0), None)
    return found or _positive(getattr(config, "n_positions", None))


def maximum_length(model: nn.Module) -> int | None:
    """The longest input: as many as there are learned positions, None if they are computed."""
    own = getattr(model, "maximum_length", None)
    if isinstance(own, int):
        return own
    tables = [
        module.num_embeddings - _offset(module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
        and ("position" in name or name.endswith("wpe"))
        and "relative" not in name
    ]
    return min(tables, default=None)


def _offset(module: nn.Embedding) -> int:
    """Positions that a table keeps for itself (OPT and BART 2, RoBERTa padding + 1)."""
    offset = getattr(module, "offset", None)
    if isinstance(offset, int):
        return offset
    return 0 if module.padding_idx is None else module.padding_idx + 1


def _text_config(model: nn.Module) -> Any:
    config = getattr(model, "config", None)
    read = getattr(config, "get_text_config", None)
    return read() if callable(read) else config


def _positive(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _config(path: Path) -> dict[str, Any]:
    try:
        found = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ScanError(f"MODEL {path} is no model: it has no config.json") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise ScanError(f"MODEL {path}: config.json is not JSON") from error
    if not isinstance(found, dict):
        raise ScanError(f"MODEL {path}: config.json is not a JSON object")
    return found


def _check_index(path: Path) -> None:
    """Every shard that the index names is there."""
    for index in path.glob("*.safetensors.index.json"):
        try:
            named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ScanError(f"{index} is not an index of weights") from error
        missing = sorted(name for name in named if not (path / name).is_file())
        if missing:
            raise ScanError(f"MODEL {path} is incomplete: {missing[0]} is missing")
