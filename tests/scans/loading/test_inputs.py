import numpy as np
import pytest

from attentropy.scans.job import Job, read_tokens
from attentropy.scans.loading import inputs
from attentropy.scans.loading.sources import Permissions, Placement, Source, byte_label, load
from attentropy.scans.schema import ScanError
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
        (b"", r"--text .*t\.txt is empty"),
        (b" \n\t", r"--text .*t\.txt is empty"),
        (b"ab\xff\xfe", r"--text .*t\.txt is not UTF-8: byte 2 is wrong"),
    ],
)
def test_texts_that_are_none(tmp_path, source, content, message):
    path = tmp_path / "t.txt"
    path.write_bytes(content)
    with pytest.raises(ScanError, match=message):
        inputs.from_texts([path], source)


def test_a_text_that_is_not_there_or_is_a_folder(tmp_path, source):
    with pytest.raises(ScanError, match=r"--text .* does not exist"):
        inputs.from_texts([tmp_path / "absent"], source)
    with pytest.raises(ScanError, match=r"--text .* is a folder, not a file"):
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
    with pytest.raises(ScanError, match=r"--tokens .* does not exist"):
        inputs.from_file(tmp_path / "absent.npy", source)
    np.save(path, np.array([-1, 5]))
    with pytest.raises(ScanError, match="token ids must be 0 or more, got -1"):
        inputs.from_file(path, source)


def test_a_model_without_tokenizer_asks_for_ids(tmp_path, source):
    (tmp_path / "a.txt").write_text("text")
    mute = Source(make(), source.about, "none", None, byte_label, "")
    with pytest.raises(ScanError, match=r"has no tokenizer: give its token ids with --tokens"):
        inputs.from_texts([tmp_path / "a.txt"], mute)


def test_a_model_of_images_is_told_from_one_without_tokenizer(source):
    source.model.main_input_name = "pixel_values"
    with pytest.raises(ScanError, match=r"a scan reads text, and .* takes pixel_values"):
        read_tokens(Job(), source)
