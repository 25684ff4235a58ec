import pytest
import torch

from attentropy.core.errors import ArgumentError
from attentropy.extensions.passkeys import COUNT, NAMES, hidden, plain

TEXT = torch.arange(3000) % 26 + 97


def encode(text):
    return list(text.encode())


def merging(text):
    """A tokenizer that takes a space and what follows as one token, as many do."""
    return [hash(word) % 10**6 for word in text.replace(" ", "\0 ").split("\0")]


def test_ten_keys_stand_at_ten_depths_and_the_end_is_plain():
    found = hidden(TEXT, encode, length=2000, last=300, seed=3)
    assert len(found.ids) + max(q.tokens for q in found.questions) == 2000
    assert torch.equal(found.ids[-300:], TEXT[-300:])
    text = bytes(found.ids.tolist()).decode()
    places = [text.index(f"\nPass key {name} ") for name in NAMES[:COUNT]]
    assert places == sorted(places)
    assert places[-1] < 2000 - 300
    for name, question in zip(NAMES[:COUNT], found.questions, strict=True):
        key = bytes(question.answer.tolist()).decode()
        assert len(key) == 5
        assert text.count(f"ass key {name} {key}.") == 3
        assert bytes(question.prompt.tolist()).decode() == f"\nPass key {name} "


def test_more_keys_stand_where_they_are_said_to_stand():
    found = hidden(TEXT, encode, length=4000, last=300, count=30)
    assert len(found.questions) == len(found.places) == len(NAMES) == len(set(NAMES)) == 30
    assert len({tuple(q.answer.tolist()) for q in found.questions}) == 30
    text = bytes(found.ids.tolist()).decode()
    for name, place in zip(NAMES, found.places, strict=True):
        assert text[place:].startswith(f"\nPass key {name} ")
    with pytest.raises(ArgumentError, match="count must be between 2 and 30, got 31"):
        hidden(TEXT, encode, length=4000, last=300, count=31)


def test_keys_follow_the_seed():
    one, same, other = (hidden(TEXT, encode, length=2000, last=100, seed=s) for s in (1, 1, 2))
    assert torch.equal(one.ids, same.ids)
    assert not torch.equal(one.ids, other.ids)


def test_a_tokenizer_that_merges_the_space_still_has_a_whole_answer():
    found = hidden(TEXT, merging, length=2000, last=100)
    assert all(len(q.answer) == 1 for q in found.questions)
    assert len({int(q.answer) for q in found.questions}) == COUNT


def test_a_text_that_is_too_short_is_refused():
    with pytest.raises(ArgumentError, match="length must be long enough for 10 passkeys and 300"):
        hidden(TEXT, encode, length=900, last=300)
    assert len(plain(TEXT, length=700).ids) == 700
    assert plain(TEXT, length=700).questions == ()


def test_special_tokens_come_first_also_where_only_the_end_is_read():
    found = hidden(TEXT, encode, length=2000, last=300, begin=(1, 2))
    whole, end = found.cut(2000), found.cut(900)
    assert whole[:2].tolist() == end[:2].tolist() == [1, 2]
    assert len(whole) + found.room == 2000
    assert len(end) + found.room == 900
    assert torch.equal(end[2:], whole[-len(end) + 2 :])
    assert len(plain(TEXT, length=50, begin=(1,)).cut(50)) == 50
