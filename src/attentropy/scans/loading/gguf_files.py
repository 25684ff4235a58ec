"""GGUF files, opened once for all who read them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

REPEATED = ("GGUFReader", "get_tensor_name_map")


@contextmanager
def read_once() -> Iterator[None]:
    """Within it, a GGUF file that is opened again is the one that was opened before.

    transformers opens a file for the config, for the weights and for the tokenizer, and makes the
    table of its names for every module: on a model of 135 million weights that takes longer than
    the weights. Nothing is kept afterwards.
    """
    import gguf

    own: dict[str, Callable[..., Any]] = {name: getattr(gguf, name) for name in REPEATED}
    for name, function in own.items():
        setattr(gguf, name, cache(function))
    try:
        yield
    finally:
        for name, function in own.items():
            setattr(gguf, name, function)
