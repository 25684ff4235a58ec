"""Checks of a model folder before anything in it is loaded or run."""

import json
from pathlib import Path
from typing import Any

from attentropy.scans.errors import ScanError

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def check_folder(path: Path, *, allow_pickle: bool, allow_code: bool) -> None:
    """A transformers folder with weights that are whole and safe to load, or a ScanError.

    Args:
        path: the folder.
        allow_pickle: let pickled weights pass.
        allow_code: let code in the folder pass.
    """
    if not path.is_dir():
        raise ScanError("{model} {path} is neither a folder nor a .gguf file", path=path)
    config = config_of(path)
    if config.get("auto_map") and not allow_code:
        text = "{model} {path} brings its own code, which is not run without {remote_code}"
        raise ScanError(text, path=path)
    shards = sorted(path.glob("*.safetensors"))
    if shards:
        _check_index(path)
        for shard in shards:
            check_safetensors(shard)
        return
    pickled = sorted(file for pattern in PICKLED for file in path.glob(pattern))
    if not pickled:
        raise ScanError("{model} {path} has no weights: there is no .safetensors file", path=path)
    if not allow_pickle:
        text = (
            "{model} {path}: {file} is pickled and could run code; {pickle} loads it all the same"
        )
        raise ScanError(text, path=path, file=pickled[0].name)


def check_safetensors(path: Path) -> None:
    """The file's header is sound and all of its tensors are there."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise ScanError("{path} is corrupt or truncated: {why}", path=path, why=error) from error


def check_gguf(path: Path) -> None:
    """The file is there and begins as GGUF files do."""
    if not path.is_file():
        raise ScanError("{model} {path} does not exist", path=path)
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ScanError("{model} {path} is not a GGUF file", path=path)
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise ScanError("GGUF files need the extra: pip install 'attentropy[gguf]'") from error


def config_of(path: Path) -> dict[str, Any]:
    """What config.json of a folder says.

    Args:
        path: the folder.
    """
    try:
        found = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        text = "{model} {path} is not a model: it has no config.json"
        raise ScanError(text, path=path) from error
    except (ValueError, UnicodeDecodeError) as error:
        raise ScanError("{model} {path}: config.json is not JSON", path=path) from error
    except RecursionError as error:
        text = "{model} {path}: config.json is nested too deep for a model's"
        raise ScanError(text, path=path) from error
    if not isinstance(found, dict):
        raise ScanError("{model} {path}: config.json is not a JSON object", path=path)
    return found


def _check_index(path: Path) -> None:
    """Every shard that the index names is there."""
    for index in path.glob("*.safetensors.index.json"):
        try:
            named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ScanError("{index} is not an index of weights", index=index) from error
        missing = sorted(name for name in named if not (path / name).is_file())
        if missing:
            text = "{model} {path} is incomplete: {file} is missing"
            raise ScanError(text, path=path, file=missing[0])
