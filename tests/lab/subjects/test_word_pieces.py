import gzip

import pytest
import torch

from attentropy.core.errors import ArgumentError
from attentropy.lab.subjects import word_pieces

WORDS = "the attention of a head is a row of weights and every row sums to one. "


@pytest.fixture(scope="module")
def texts():
    return word_pieces.pieces(WORDS * 3000, 64)


def test_a_folder_is_read_by_path_and_each_text_once(tmp_path):
    long = WORDS * 1200
    (tmp_path / "b.pod").write_text("second " + long)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"first " + long.encode()))
    (tmp_path / "c.rst").write_text("second " + long)
    (tmp_path / "d.png").write_bytes(b"no text")
    found = word_pieces.gathered(tmp_path)
    assert found.startswith("first the")
    assert found.count("second") == 1
    assert "no text" not in found


def test_a_small_text_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text(WORDS)
    with pytest.raises(ArgumentError, match="--text"):
        word_pieces.gathered(tmp_path)


def test_blocks_are_held_out_and_pieces_continue_words(texts):
    share = len(texts.held) / (len(texts.held) + len(texts.learned))
    assert 0.01 < share < 0.05
    assert texts.inner.any()
    assert not texts.inner[: word_pieces.UNKNOWN + 1].any()
    assert int(texts.learned.max()) < 64


def test_words_are_hidden_whole_and_in_the_published_shares(texts):
    tokens = texts.learned[: 64 * 200].view(200, 64)
    seen, asked = word_pieces.hidden(tokens, texts.inner, 0.15, torch.Generator().manual_seed(0))
    wanted = asked != -100
    assert torch.equal(asked[wanted], tokens[wanted])
    assert torch.equal(seen[~wanted], tokens[~wanted])
    assert wanted.float().mean().item() == pytest.approx(0.15, abs=0.02)
    assert (seen[wanted] == word_pieces.HIDDEN).float().mean().item() == pytest.approx(
        0.8, abs=0.04
    )
    same = (seen[wanted] == tokens[wanted]).float().mean().item()
    assert same == pytest.approx(0.1, abs=0.03)
    inside = texts.inner[tokens[:, 1:]]
    assert torch.equal(wanted[:, 1:][inside], wanted[:, :-1][inside])
