"""Texts as word pieces: read a folder of documentation, make a vocabulary of it, hide words.

Words are hidden whole, as in the published training (GAU-alpha's train.py): of the hidden ones
80 % become the mask, 10 % other pieces, 10 % stay as they are and are asked for all the same.
"""

import gzip
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from attentropy.core.errors import ArgumentError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

HIDDEN, UNKNOWN = 0, 1  # ids of the mask and of what no piece fits
KINDS = (".pod", ".rst", ".txt", ".txt.gz")
EVERY = 40  # one of so many blocks of text is held out
BLOCK = 16_384  # characters


class WordTexts(NamedTuple):
    """A text as pieces.

    Attributes:
        learned: ids to learn from, [N].
        held: ids of blocks that are held out, [M].
        inner: True for the pieces that continue a word, [vocabulary].
    """

    learned: Tensor
    held: Tensor
    inner: Tensor


def gathered(folder: Path) -> str:
    """The text of a folder's documentation: .pod, .rst and .txt files, by path, each once.

    Args:
        folder: is searched with the folders inside it; a file is read by itself.
    """
    files = [folder] if folder.is_file() else sorted(p for p in folder.rglob("*") if p.is_file())
    texts = [_text(path) for path in files if path == folder or path.name.endswith(KINDS)]
    joined = "\n".join(dict.fromkeys(texts))
    if len(joined) < 2 * EVERY * BLOCK // 16:
        raise ArgumentError("--text", f"{KINDS} files of more than 80 KB together", str(folder))
    return joined


def _text(path: Path) -> str:
    raw = path.read_bytes()
    return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8", "replace")


def digest(text: str) -> str:
    """The first twelve digits of the text's SHA-256, to know it again.

    Args:
        text: any text.
    """
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def pieces(text: str, vocabulary: int) -> WordTexts:
    """Make a vocabulary of the text, and write the text in it; every fortieth block is held out.

    The trainer settles ties by chance, so that two calls may choose and number pieces differently.

    Args:
        text: to learn from and to be tested on.
        vocabulary: number of pieces.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    writer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    writer.normalizer = normalizers.BertNormalizer(lowercase=True)
    writer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary, special_tokens=["[MASK]", "[UNK]"], show_progress=False
    )
    size = min(BLOCK, max(256, len(text) // (2 * EVERY)))
    blocks = [text[i : i + size] for i in range(0, len(text), size)]
    learned = [block for i, block in enumerate(blocks) if i % EVERY != EVERY - 1]
    writer.train_from_iterator(learned, trainer)
    held = [block for i, block in enumerate(blocks) if i % EVERY == EVERY - 1]
    names = [writer.id_to_token(i) or "" for i in range(vocabulary)]
    inner = torch.tensor([name.startswith("##") for name in names])
    return WordTexts(_ids(writer, learned), _ids(writer, held), inner)


def _ids(writer: "Tokenizer", blocks: list[str]) -> Tensor:
    return torch.tensor([i for one in writer.encode_batch(blocks) for i in one.ids])


def hidden(
    tokens: Tensor, inner: Tensor, share: float, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """What the model sees, and the pieces asked for (-100 where nothing is asked).

    Args:
        tokens: ids [B,N].
        inner: True for the pieces that continue a word.
        share: of the words to hide.
        rng: source of random numbers.
    """
    word = (~inner[tokens]).long().cumsum(1)
    drawn = torch.rand(tokens.shape[0], tokens.shape[1] + 1, generator=rng).gather(1, word)
    drawn = drawn / share  # below 1: hidden
    others = torch.randint(2, len(inner), tokens.shape, generator=rng)
    seen = tokens.masked_fill(drawn < 0.8, HIDDEN)
    seen = torch.where((drawn >= 0.9) & (drawn < 1.0), others, seen)
    return seen, tokens.masked_fill(drawn >= 1.0, -100)
