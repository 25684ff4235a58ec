"""The name of a model on disk: that of its file, or of the nearest folder with a telling name."""

import re
from pathlib import Path

SAYS_NOTHING = re.compile(
    r"(hf|torch|pytorch|gguf|ggml)?[-_.]?"
    r"(models?|weights|snapshots?|transformers?|final|best|last|latest|outputs?|out|export(ed)?)"
    r"|[0-9a-f]{32,}|hf|torch|pytorch|gguf|safetensors|",
    re.IGNORECASE,
)
CHECKPOINT = re.compile(r"(checkpoint|step|epoch|ckpt)s?[-_.]?\d*", re.IGNORECASE)
HUB = "models--"  # begins a folder of the hub's cache, such as models--gpt2 or models--owner--name


def name_of(path: Path) -> str:
    """The name of a model that lies at `path`, for titles.

    Args:
        path: a folder, or a .gguf file.

    >>> name_of(Path("/models/all-MiniLM-L6/model"))
    'all-MiniLM-L6'
    >>> name_of(Path("/runs/small/checkpoint-500"))
    'small/checkpoint-500'
    >>> name_of(Path("/hub/models--owner--tiny/snapshots/0a1b2c3d4e5f60718293a4b5c6d7e8f901234567"))
    'tiny'
    >>> name_of(Path("/models/SmolLM2/model.gguf"))
    'SmolLM2'
    """
    whole = path.resolve()
    own = whole.stem if whole.suffix == ".gguf" else whole.name
    if CHECKPOINT.fullmatch(own):
        above = _telling(whole.parent)
        return f"{above}/{own}" if above else own
    if not SAYS_NOTHING.fullmatch(own):
        return whole.name
    return _telling(whole.parent) or whole.name


def _telling(folder: Path) -> str:
    """The nearest name from `folder` upwards that says something; "" if none does."""
    for one in (folder, *folder.parents):
        if one.name.startswith(HUB):
            return one.name.split("--")[-1]
        if not SAYS_NOTHING.fullmatch(one.name):
            return one.name
    return ""
