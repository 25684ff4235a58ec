"""Passkeys: numbers hidden in a text at several depths, and the questions that ask for them."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from attentropy.core.errors import ArgumentError

Encode = Callable[[str], list[int]]
NAMES = (
    "apple", "river", "window", "mountain", "guitar", "planet", "bridge", "candle", "forest",
    "rocket", "garden", "silver", "pencil", "thunder", "castle", "dragon", "orange", "tiger",
    "button", "island", "winter", "mirror", "basket", "violin", "camera", "desert", "hammer",
    "ladder", "ocean", "pepper",
)  # fmt: skip
COUNT = 10
HIDDEN = (
    "\nPass key {name} {key}. Again: pass key {name} {key}. Once more: pass key {name} {key}.\n"
)
ASKED = "\nPass key {name} {key}"
DIGITS = 5


@dataclass(frozen=True)
class Question:
    """A question that ends where the answer begins.

    Attributes:
        prompt: its tokens.
        answer: the tokens of the digits.
    """

    prompt: Tensor
    answer: Tensor

    @property
    def tokens(self) -> int:
        """Tokens of question and answer."""
        return len(self.prompt) + len(self.answer)


@dataclass(frozen=True)
class Haystack:
    """A text with passkeys in it.

    Attributes:
        ids: tokens [n]; the last ones are plain text.
        questions: one for each passkey, the one nearest to the beginning first.
        begin: special tokens that the model reads before any text.
        places: where in `ids` each passkey begins.
    """

    ids: Tensor
    questions: tuple[Question, ...] = ()
    begin: tuple[int, ...] = ()
    places: tuple[int, ...] = ()

    @property
    def room(self) -> int:
        """Tokens that the longest question with its answer needs."""
        return max((question.tokens for question in self.questions), default=0)

    def cut(self, length: int) -> Tensor:
        """The input of a model that reads the last tokens only: special tokens, then the end.

        Args:
            length: number of tokens, including the longest question.
        """
        kept = length - self.room - len(self.begin)
        return torch.cat([torch.tensor(self.begin, dtype=torch.long), self.ids[-kept:]])


def plain(text: Tensor, *, length: int, begin: tuple[int, ...] = ()) -> Haystack:
    """The last tokens of a text, without passkeys.

    Args:
        text: tokens [n].
        length: the number of tokens, special ones among them.
        begin: special tokens before the text.
    """
    return Haystack(text[-(length - len(begin)) :], begin=begin)


def hidden(
    text: Tensor,
    encode: Encode,
    *,
    length: int,
    last: int,
    seed: int = 0,
    begin: tuple[int, ...] = (),
    count: int = COUNT,
) -> Haystack:
    """The end of a text with ten passkeys in it, at depths 5, 15, ..., 95 % of what is not `last`.

    Other counts are spread just as evenly.

    Special tokens, text and the longest question together have `length` tokens.

    Args:
        text: tokens [n]; the last of them are the end of the haystack.
        encode: a string to tokens.
        length: the number of tokens of all.
        last: tokens at the end that hold no passkey.
        seed: of the numbers.
        begin: special tokens before the text.
        count: the number of passkeys, 2 to 30.
    """
    if not 2 <= count <= len(NAMES):
        raise ArgumentError("count", f"between 2 and {len(NAMES)}", count)
    names, keys = NAMES[:count], _keys(seed, count)
    needles = [encode(HIDDEN.format(name=n, key=k)) for n, k in zip(names, keys, strict=True)]
    questions = tuple(_question(encode, name, keys, i) for i, name in enumerate(names))
    taken = max(q.tokens for q in questions) + sum(map(len, needles)) + len(begin)
    room = length - taken
    if room < last + count or room > len(text):
        rule = f"long enough for {count} passkeys and {last} tokens after them"
        raise ArgumentError("length", rule, length)
    body = text[-room:].tolist()
    found: list[int] = []
    places: list[int] = []
    before = 0
    for i, needle in enumerate(needles):
        depth = int((i + 0.5) / len(needles) * (room - last))
        found += body[before:depth]
        places.append(len(found))
        found += needle
        before = depth
    return Haystack(torch.tensor(found + body[before:]), questions, begin, tuple(places))


def _keys(seed: int, count: int) -> list[str]:
    """Numbers of five digits, of which any ten in a row have first digits of their own."""
    chance = random.Random(seed)
    firsts = (chance.sample(range(10), 10) * -(-count // 10))[:count]
    rest = 10 ** (DIGITS - 1)
    return [f"{first}{chance.randrange(rest):0{DIGITS - 1}d}" for first in firsts]


def _question(encode: Encode, name: str, keys: Sequence[str], index: int) -> Question:
    """What the tokens of all keys have in common is the question, the rest is the answer."""
    each = [encode(ASKED.format(name=name, key=key)) for key in keys]
    shared = list(takewhile(lambda column: len(set(column)) == 1, zip(*each, strict=False)))
    own = torch.tensor(each[index])
    return Question(own[: len(shared)], own[len(shared) :])
