import os

import numpy as np
import pytest
import torch

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.scans.errors import ScanError
from attentropy.scans.loading import inputs
from attentropy.scans.loading.sources import Permissions, Placement, Source, byte_label, load
from tests.scans.tiny import make


@pytest.fixture
def source():
    return load("scans.tiny:make", Placement(), Permissions())


def test_texts_follow_one_another(tmp_path, source):
    for name, text in (("a.txt", "één"), ("b.txt", "two")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    tokens = inputs.from_texts([tmp_path / "a.txt", tmp_path / "b.txt"], source)
    assert bytes(tokens.ids.tolist()).decode() == "één\ntwo"
    assert tokens.about.description == "a.txt + b.txt"
    assert tokens.about.tokens == len(tokens.ids) == 9


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"text .*t\.txt is empty"),
        (b" \n\t", r"text .*t\.txt is empty"),
        (b"ab\xff\xfe", r"text .*t\.txt is not UTF-8: byte 2 is wrong"),
    ],
)
def test_texts_that_are_none(tmp_path, source, content, message):
    path = tmp_path / "t.txt"
    path.write_bytes(content)
    with pytest.raises(ScanError, match=message):
        inputs.from_texts([path], source)


def test_a_text_that_is_not_there_or_is_a_folder(tmp_path, source):
    with pytest.raises(ScanError, match=r"text .* does not exist"):
        inputs.from_texts([tmp_path / "absent"], source)
    with pytest.raises(ScanError, match=r"text .* is a folder, not a file"):
        inputs.from_texts([tmp_path], source)


def test_token_files(tmp_path, source):
    path = tmp_path / "ids.npy"
    np.save(path, np.arange(12, dtype=np.int32).reshape(3, 4))
    tokens = inputs.from_file(path, source)
    assert tokens.ids.tolist() == list(range(12))
    np.save(path, np.array([1.5]))
    with pytest.raises(ScanError, match=r"is not a \.npy file of integers"):
        inputs.from_file(path, source)
    np.save(path, np.array([], dtype=np.int64))
    with pytest.raises(ScanError, match=r"is not a \.npy file of integers"):
        inputs.from_file(path, source)
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ScanError, match=r"is not a \.npy file of integers"):
        inputs.from_file(path, source)
    path.write_bytes(b"junk")
    with pytest.raises(ScanError, match=r"is not a \.npy file of integers"):
        inputs.from_file(path, source)
    with pytest.raises(ScanError, match=r"tokens .* does not exist"):
        inputs.from_file(tmp_path / "absent.npy", source)
    np.save(path, np.array([-1, 5]))
    with pytest.raises(ScanError, match="token ids must be 0 or more, got -1"):
        inputs.from_file(path, source)


def test_names_and_prompts_that_are_not_utf8(tmp_path, source):
    path = tmp_path / os.fsdecode(b"na\xffme.txt")
    path.write_text("a text of some words " * 9)
    about = inputs.from_texts([path], source).about
    assert about.description == "na?me.txt"
    assert about.files == [str(tmp_path / "na?me.txt")]
    with pytest.raises(ScanError, match="prompt is not UTF-8"):
        inputs.from_prompt("na\udcffme", source)


def test_a_token_file_that_claims_more_than_it_has(tmp_path, source):
    path = tmp_path / "ids.npy"
    np.save(path, np.arange(9))
    path.write_bytes(path.read_bytes().replace(b"(9,), }            ", b"(1000000000000,), }"))
    assert b"1000000000000" in path.read_bytes()
    with pytest.raises(ScanError, match=r"is not a \.npy file of integers"):
        inputs.from_file(path, source)


def test_a_model_without_tokenizer_asks_for_ids(tmp_path, source):
    (tmp_path / "a.txt").write_text("text")
    mute = Source(make(), source.about, "none", None, byte_label, "")
    with pytest.raises(ScanError, match=r"has no tokenizer: give its token ids with tokens"):
        inputs.from_texts([tmp_path / "a.txt"], mute)


def test_a_model_of_images_is_told_from_one_without_tokenizer(source):
    source.model.main_input_name = "pixel_values"
    with pytest.raises(ScanError, match=r"a scan reads text, and .* takes pixel_values"):
        inputs.check_reads_text(source.model)


IDS = [5, 7, 5, 255]


@pytest.mark.parametrize(
    "tokens",
    [
        IDS,
        tuple(IDS),
        [IDS[:2], IDS[2:]],
        np.array(IDS, dtype=np.uint8),
        np.array([IDS]),
        torch.tensor(IDS, dtype=torch.int32),
        torch.tensor([IDS]),
    ],
)
def test_ids_come_in_many_forms(tokens):
    found = inputs.of(tokens, make())
    assert found.ids.tolist() == IDS
    assert found.ids.dtype == torch.int64
    assert found.about.tokens == 4
    assert found.about.tokenizer == "given as ids"
    assert inputs.of(found, make()) is found


def test_a_range_and_large_unsigned_integers():
    assert inputs.of(range(3, 6), make()).ids.tolist() == [3, 4, 5]
    assert inputs.of(np.array([1, 2], dtype=np.uint16), make()).ids.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("tokens", "got"),
    [
        ([0.5, 1.0], "numbers of type float64"),
        (torch.ones(4), "numbers of type float32"),
        (np.ones(4, dtype=bool), "numbers of type bool"),
        ([True, False], "numbers of type bool"),
        (["a", "b"], "list"),
        ([[1, 2], [3]], "list"),
        (None, "NoneType"),
        (7, "int"),
        (b"ab", "bytes"),
        ({1: 2}, "dict"),
    ],
)
def test_what_is_no_token_is_refused_by_name(tokens, got):
    rule = r"tokens must be ids of tokens \(a tensor, an array or a list of integers\), or a string"
    with pytest.raises(ArgumentTypeError, match=f"{rule}.*, got {got}$"):
        inputs.of(tokens, make())


@pytest.mark.parametrize("tokens", [[], [5], torch.empty(0), "", np.zeros((0, 3), dtype=int)])
def test_too_few_tokens_are_refused(tokens):
    model = make()
    model.vocabulary = 256
    with pytest.raises(ArgumentError, match="tokens must be two ids or more, got [01]$"):
        inputs.of(tokens, model)


def test_ids_that_the_model_does_not_know_are_refused():
    model = make()
    with pytest.raises(ScanError, match="^tokens: token ids must be 0 or more, got -3$"):
        inputs.of([1, -3], model)
    model.vocabulary = 100
    with pytest.raises(ScanError, match="^tokens: token ids must be 0 or more below 100, got 255"):
        inputs.of(IDS, model)


def test_a_string_goes_through_the_tokenizer_of_the_model_or_as_bytes():
    model = make()
    with pytest.raises(ArgumentTypeError, match="got a string, and Tiny has neither"):
        inputs.of("hé", model)
    model.vocabulary = 256
    found = inputs.of("hé", model)
    assert found.ids.tolist() == list("hé".encode())
    assert found.about.tokenizer == "bytes"
    model.tokenizer = lambda text: {"input_ids": [[ord(c) - 97 for c in text]]}
    assert inputs.of("abc", model).ids.tolist() == [0, 1, 2]
    model.tokenizer = lambda text: [3, 4]
    assert inputs.of("abc", model).ids.tolist() == [3, 4]
