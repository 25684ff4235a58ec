"""What the model reads: text files, a token file, or the sample that comes with the package."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attentropy.scans.loading.sources import Source
from attentropy.scans.schema import Input, ScanError


@dataclass(frozen=True)
class Tokens:
    """One long row of token ids, and where it comes from."""

    ids: Tensor
    about: Input


def from_texts(paths: Sequence[Path], source: Source) -> Tokens:
    """The files' texts one after another, through the model's tokenizer."""
    text = "\n".join(read_text(path) for path in paths)
    names = [str(path) for path in paths]
    return _tokenised(text, source, description=" + ".join(p.name for p in paths), files=names)


def from_sample(source: Source) -> Tokens:
    """The sample text of the package."""
    from attentropy.lab.embedded import sample_bytes

    text = sample_bytes().decode("utf-8", errors="replace")
    return _tokenised(text, source, description="the embedded sample text", files=[])


def from_file(path: Path, source: Source) -> Tokens:
    """Token ids from a .npy file of integers; rows of a table follow one another."""
    try:
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
    except FileNotFoundError as error:
        raise ScanError(f"--tokens {path} does not exist") from error
    except IsADirectoryError as error:
        raise ScanError(f"--tokens {path} is a folder, not a file") from error
    except (ValueError, EOFError) as error:
        raise ScanError(f"--tokens {path} is not a .npy file of integers") from error
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "iu" or found.size == 0:
        raise ScanError(f"--tokens {path} is not a .npy file of integers")
    ids = torch.from_numpy(np.ascontiguousarray(found).reshape(-1).astype(np.int64))
    _check_range(ids, source, f"--tokens {path}")
    about = describe_ids(ids, description=path.name, files=[str(path)], tokenizer="given as ids")
    return Tokens(ids, about)


def read_text(path: Path) -> str:
    """The file as UTF-8 text that is not empty."""
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError as error:
        raise ScanError(f"--text {path} does not exist") from error
    except IsADirectoryError as error:
        raise ScanError(f"--text {path} is a folder, not a file") from error
    except UnicodeDecodeError as error:
        raise ScanError(f"--text {path} is not UTF-8: byte {error.start} is wrong") from error
    if not text.strip():
        raise ScanError(f"--text {path} is empty")
    return text


def _tokenised(text: str, source: Source, *, description: str, files: list[str]) -> Tokens:
    if source.encode is None:
        raise ScanError("the model has no tokenizer: give its token ids with --tokens FILE.npy")
    ids = torch.tensor(source.encode(text), dtype=torch.int64)
    _check_range(ids, source, "the text")
    return Tokens(
        ids, describe_ids(ids, description=description, files=files, tokenizer=source.tokenizer)
    )


def _check_range(ids: Tensor, source: Source, name: str) -> None:
    size = vocabulary(source.model)
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or (size is not None and high >= size):
        limit = "" if size is None else f" below {size}"
        wrong = low if low < 0 else high
        raise ScanError(f"{name}: token ids must be 0 or more{limit}, got {wrong}")


def vocabulary(model: torch.nn.Module) -> int | None:
    """How many tokens the model knows, None if it does not say."""
    get = getattr(model, "get_input_embeddings", None)
    table = get() if callable(get) else None
    if isinstance(table, torch.nn.Embedding):
        return table.num_embeddings
    own = getattr(model, "vocabulary", None)
    return own if isinstance(own, int) else None


def describe_ids(ids: Tensor, *, description: str, files: list[str], tokenizer: str) -> Input:
    """The record of these ids, with their SHA-256 as little-endian int64."""
    digest = hashlib.sha256(ids.cpu().numpy().astype("<i8").tobytes()).hexdigest()
    return Input(
        description=description, files=files, tokens=len(ids), tokenizer=tokenizer, sha256=digest
    )
