"""What the model reads: ids, a text, text files, a token file, or the sample of the package."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.core.formats import printable
from attentropy.scans.errors import ScanError
from attentropy.scans.loading.sources import Source, byte_ids
from attentropy.scans.loading.special import Special, special_of, weaknesses
from attentropy.scans.schema import ScannedText

TAKES = (
    "ids of tokens (a tensor, an array or a list of integers), or a string where the model has a "
    "tokenizer or reads bytes"
)
GIVEN = "given as ids"


@dataclass(frozen=True)
class Tokens:
    """One long row of token ids, and where it comes from.

    Attributes:
        ids: the text itself.
        about: the record of it.
        begin: special tokens that every window of the text begins with, as in training.
        end: special tokens that every window ends with.
    """

    ids: Tensor
    about: ScannedText
    begin: tuple[int, ...] = ()
    end: tuple[int, ...] = ()


Readable = Tensor | np.ndarray | Sequence[Any] | Tokens  # a string is a sequence


def of(tokens: Readable, model: nn.Module) -> Tokens:
    """What `scan` was given as one row of ids; rows of a table follow one another.

    Args:
        tokens: a tensor, an array or a list of integers, a string, or `Tokens` themselves.
        model: says which ids it knows, and has the tokenizer for a string.
    """
    check_reads_text(model)
    if isinstance(tokens, Tokens):
        return tokens
    special = Special()
    if isinstance(tokens, str):
        ids, tokenizer, special = _encoded(tokens, model)
    else:
        ids, tokenizer = _integers(tokens), GIVEN
    if len(ids) < 2:
        raise ArgumentError("tokens", "two ids or more", len(ids))
    _check_range(ids, model, "{tokens}")
    about = describe_ids(ids, description="tokens", files=[], tokenizer=tokenizer)
    return _with_special(ids, about, special)


def _with_special(ids: Tensor, about: ScannedText, special: Special) -> Tokens:
    about.special, about.warnings = special.words, weaknesses(ids, special.unknown)
    return Tokens(ids, about, special.begin, special.end)


def check_reads_text(model: nn.Module) -> None:
    """Refuse a model whose main input is something else than ids."""
    reads = getattr(model, "main_input_name", "input_ids")
    if reads != "input_ids":
        text = "a scan reads text, and {name} takes {reads}: use at.watch(model)"
        raise ScanError(text, name=type(model).__name__, reads=reads)


def _integers(tokens: Any) -> Tensor:
    if not isinstance(tokens, Tensor | np.ndarray | Sequence):
        raise ArgumentTypeError("tokens", TAKES, type(tokens).__name__)
    try:
        found = tokens if isinstance(tokens, Tensor) else torch.from_numpy(np.array(tokens))
    except (TypeError, ValueError) as error:  # ragged rows, objects
        raise ArgumentTypeError("tokens", TAKES, type(tokens).__name__) from error
    if not found.numel():
        raise ArgumentError("tokens", "two ids or more", 0)
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        kind = str(found.dtype).removeprefix("torch.")
        raise ArgumentTypeError("tokens", TAKES, f"numbers of type {kind}")
    return found.detach().reshape(-1).long().cpu()


def _encoded(text: str, model: nn.Module) -> tuple[Tensor, str, Special]:
    """The ids of a text by the model's own tokenizer, or its bytes; and what made them."""
    tokenizer = getattr(model, "tokenizer", None)
    if callable(tokenizer):
        of_transformers = hasattr(tokenizer, "convert_ids_to_tokens")
        found = tokenizer(text, add_special_tokens=False) if of_transformers else tokenizer(text)
        ids = found["input_ids"] if hasattr(found, "keys") else found
        special = special_of(tokenizer) if of_transformers else Special()
        return torch.as_tensor(ids).long().reshape(-1), type(tokenizer).__name__, special
    if vocabulary(model) == 256:
        return torch.tensor(byte_ids(text), dtype=torch.int64), "bytes", Special()
    raise ArgumentTypeError("tokens", TAKES, f"a string, and {type(model).__name__} has neither")


def from_texts(paths: Sequence[Path], source: Source) -> Tokens:
    """The files' texts one after another, through the model's tokenizer.

    Args:
        paths: UTF-8 files.
        source: the model, with its tokenizer.
    """
    text = "\n".join(read_text(path) for path in paths)
    names = [printable(str(path)) for path in paths]
    description = " + ".join(printable(path.name) for path in paths)
    return _tokenised(text, source, description=description, files=names)


def from_prompt(prompt: str, source: Source) -> Tokens:
    """A text that stands on the command line, through the model's tokenizer.

    Args:
        prompt: the text.
        source: the model, with its tokenizer.
    """
    if not prompt.strip():
        raise ScanError("{prompt} is empty")
    if printable(prompt) != prompt:
        raise ScanError("{prompt} is not UTF-8")
    return _tokenised(prompt, source, description="a prompt", files=[])


def from_sample(source: Source) -> Tokens:
    """The sample text of the package, through the model's tokenizer."""
    from attentropy.lab.embedded import sample_bytes

    text = sample_bytes().decode("utf-8", errors="replace")
    return _tokenised(text, source, description="the embedded sample text", files=[])


def from_file(path: Path, source: Source) -> Tokens:
    """Token ids from a .npy file of integers; rows of a table follow one another.

    Args:
        path: the .npy file.
        source: the model, which says which ids it knows.
    """
    wrong = ScanError("{tokens} {path} is not a .npy file of integers", path=path)
    if path.is_dir():
        raise ScanError("{tokens} {path} is a folder, not a file", path=path)
    if not path.is_file():
        raise ScanError("{tokens} {path} does not exist", path=path)
    try:
        # mapped: a header that claims more numbers than the file has allocates nothing
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # the header is parsed as Python, which fails in many ways
        raise wrong from error
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu" or found.size == 0:
        raise wrong
    ids = torch.from_numpy(np.ascontiguousarray(found).reshape(-1).astype(np.int64))
    _check_range(ids, source.model, "{tokens} {path}", path=path)
    name, where = printable(path.name), printable(str(path))
    about = describe_ids(ids, description=name, files=[where], tokenizer=GIVEN)
    return _with_special(ids, about, Special(unknown=source.special.unknown))


def read_text(path: Path) -> str:
    """The file as UTF-8 text that is not empty."""
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError as error:
        raise ScanError("{text} {path} does not exist", path=path) from error
    except IsADirectoryError as error:
        raise ScanError("{text} {path} is a folder, not a file", path=path) from error
    except UnicodeDecodeError as error:
        at = error.start
        raise ScanError(
            "{text} {path} is not UTF-8: byte {at} is wrong", path=path, at=at
        ) from error
    if not text.strip():
        raise ScanError("{text} {path} is empty", path=path)
    return text


def _tokenised(text: str, source: Source, *, description: str, files: list[str]) -> Tokens:
    if source.encode is None:
        raise ScanError("the model has no tokenizer: give its token ids with {tokens}")
    ids = torch.tensor(source.encode(text), dtype=torch.int64)
    _check_range(ids, source.model, "the text")
    about = describe_ids(ids, description=description, files=files, tokenizer=source.tokenizer)
    return _with_special(ids, about, source.special)


def _check_range(ids: Tensor, model: nn.Module, what: str, **values: object) -> None:
    """Refuse ids that the model does not know; `what` and `values` begin the message."""
    size = vocabulary(model)
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or (size is not None and high >= size):
        limit = "" if size is None else f" below {size}"
        text = what + ": token ids must be 0 or more{limit}, got {wrong}"
        raise ScanError(text, limit=limit, wrong=low if low < 0 else high, **values)


def vocabulary(model: nn.Module) -> int | None:
    """The number of tokens that the model knows, None if it does not say."""
    get: Callable[[], Any] | None = getattr(model, "get_input_embeddings", None)
    table = get() if callable(get) else None
    if isinstance(table, nn.Embedding):
        return table.num_embeddings
    own = getattr(model, "vocabulary", None)
    return own if isinstance(own, int) else None


def describe_ids(ids: Tensor, *, description: str, files: list[str], tokenizer: str) -> ScannedText:
    """The record of these ids, with their SHA-256 as little-endian int64.

    Args:
        ids: one row of tokens.
        description: what they are, in a few words.
        files: the files that they come from.
        tokenizer: what made them.
    """
    digest = hashlib.sha256(ids.cpu().numpy().astype("<i8").tobytes()).hexdigest()
    return ScannedText(
        description=description, files=files, tokens=len(ids), tokenizer=tokenizer, sha256=digest
    )
