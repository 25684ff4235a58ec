"""Special tokens as a tokenizer adds them, and texts that say little about a model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

MOST = 0.5  # share of a text that one token may have
SAMPLE = "a text"


@dataclass(frozen=True)
class Special:
    """The tokens that a tokenizer adds around a text.

    Attributes:
        begin: ids before it.
        end: ids after it.
        unknown: the id of what the tokenizer does not know; None if there is none.
        words: the same for people; "" without a tokenizer.
    """

    begin: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    unknown: int | None = None
    words: str = ""


def special_of(tokenizer: Any) -> Special:
    """What the tokenizer adds by itself, found by asking it with and without special tokens.

    Args:
        tokenizer: of transformers.
    """
    added = list(tokenizer(SAMPLE)["input_ids"])
    plain = list(tokenizer(SAMPLE, add_special_tokens=False)["input_ids"])
    at = next((i for i in range(len(added)) if added[i : i + len(plain)] == plain), None)
    unknown = getattr(tokenizer, "unk_token_id", None)
    if at is None:
        return Special(unknown=unknown, words="The tokenizer has special tokens inside a text")
    begin, end = tuple(added[:at]), tuple(added[at + len(plain) :])
    return Special(begin, end, unknown, _words(tokenizer.convert_ids_to_tokens, begin, end))


def _words(name: Callable[[list[int]], list[str]], begin: Any, end: Any) -> str:
    first, last = (" ".join(name(list(ids))) for ids in (begin, end))
    if not first and not last:
        return "The tokenizer adds no special tokens, and none were added"
    parts = [f"begins with {first}"] if first else []
    parts += [f"ends with {last}"] if last else []
    return f"Every window {' and '.join(parts)}, as the tokenizer adds them"


def weaknesses(ids: Tensor, unknown: int | None) -> list[str]:
    """What makes a text a bad sample: mostly unknown tokens, or one token again and again.

    Args:
        ids: one row of tokens.
        unknown: the id of unknown tokens, if there is one.
    """
    tokens, counts = ids.unique(return_counts=True)
    most = int(counts.argmax())
    token, share = int(tokens[most]), float(counts[most]) / len(ids)
    strange = 0.0 if unknown is None else float((ids == unknown).double().mean())
    if strange > MOST:
        return [
            f"{strange:.0%} of the tokens are unknown to the tokenizer: it cannot read this text"
        ]
    if share > MOST:
        return [f"{share:.0%} of the tokens are the same one ({token}): this is hardly a text"]
    return []
