"""trained_length(): the length of text that a model was trained at, and who says so."""

from pathlib import Path
from typing import Any

import msgspec

UNBOUNDED = 10**9  # tokenizers without a limit have 10^30 or so
CONFIG_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_seq_len")


class TrainedLength(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A number of tokens, and where it is written.

    Attributes:
        tokens: the length.
        source: the name of the field that says it.
    """

    tokens: int
    source: str

    def __str__(self) -> str:
        return f"{self.tokens:,} ({self.source})"


def trained_length(
    model: Any, tokenizer: Any = None, gguf: str | Path | None = None
) -> TrainedLength | None:
    """The length that a model was trained at, according to its files; None if no file says it.

    Looked up in this order: an attribute `trained_length` of the model;
    `original_max_position_embeddings` of its rope parameters; `max_position_embeddings`,
    `n_positions` and fields of the same meaning of its config; the context length of a GGUF file;
    `model_max_length` of the tokenizer.

    Args:
        model: a model, or its config.
        tokenizer: of transformers.
        gguf: the GGUF file that the model comes from.
    """
    own = _positive(getattr(model, "trained_length", None))
    if own is not None:
        return TrainedLength(own, "trained_length")
    found = _of_config(_text_config(getattr(model, "config", model)))
    if found is None and gguf is not None:
        found = _of_gguf(gguf)
    limit = _positive(getattr(tokenizer, "model_max_length", None))
    if found is None and limit is not None and limit < UNBOUNDED:
        found = TrainedLength(limit, "model_max_length of the tokenizer")
    return found


def _of_config(config: Any) -> TrainedLength | None:
    for name in ("rope_parameters", "rope_scaling"):
        rope = getattr(config, name, None)
        original = _original(rope) if isinstance(rope, dict) else None
        if original is not None:
            return TrainedLength(original, f"original_max_position_embeddings of {name}")
    for name in CONFIG_NAMES:
        value = _positive(getattr(config, name, None))
        if value is not None:
            return TrainedLength(value, name)
    return None


def _original(rope: dict[str, Any]) -> int | None:
    """The field itself, or the largest of the groups of layers that have one each."""
    name = "original_max_position_embeddings"
    groups = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    known = [found for group in groups if (found := _positive(group.get(name))) is not None]
    return max(known, default=None)


def _of_gguf(path: str | Path) -> TrainedLength | None:
    from gguf import GGUFReader

    fields = GGUFReader(str(path)).fields
    for name, field in fields.items():
        if name.endswith(".context_length"):
            return TrainedLength(int(field.contents()), f"{name} of the GGUF file")
    return None


def _text_config(config: Any) -> Any:
    read = getattr(config, "get_text_config", None)
    return read() if callable(read) else config


def _positive(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and value > 0 else None
