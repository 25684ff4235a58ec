"""Files are read strictly, and messages say what is wrong and where."""

import math
import os
from typing import Literal

import msgspec
import pytest

from attentropy.core import formats
from attentropy.core.errors import AttentropyError


class Note(msgspec.Struct, tag_field="format", tag="test.note", forbid_unknown_fields=True):
    text: str
    version: Literal[3] = 3
    number: float | None = None


def read(data):
    return formats.decode(data, Note, name="note.json", error=AttentropyError)


def test_what_is_written_is_read():
    note = Note("π", number=0.1)
    data = formats.encode(note)
    assert data == b'{"format":"test.note","text":"\xcf\x80","version":3,"number":0.1}\n'
    assert read(data) == read(data.decode()) == note
    assert read(formats.encode(note, indent=1)) == note
    assert formats.encode(note, indent=1).count(b"\n") > 4


def test_names_of_files_that_are_not_utf8_are_written():
    note = Note(os.fsdecode(b"na\xffme.txt"), number=0.5)
    assert read(formats.encode(note)) == Note("na?me.txt", number=0.5)


def test_what_is_not_finite_becomes_null():
    assert read(formats.encode(Note("", number=math.inf))).number is None


GOOD = '{"format": "test.note", "version": 3, "text": "a"'


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", r"note\.json is not JSON: Input data was truncated"),
        (b"\xff\xfe", r"note\.json is not JSON"),
        ("[]", r"note\.json is not a file of test\.note: its field 'format' does not say so"),
        ('{"format": "x"}', r"note\.json is not a file of test\.note"),
        ('{"format": "test.note"}', r"has version None of test\.note; this attentropy reads 3"),
        ('{"schema": "test.note", "version": 1}', r"has version 1 of test\.note"),
        (GOOD + ', "more": 1}', r"breaks the schema of test\.note: .*unknown field `more`"),
        (GOOD + ', "number": "1"}', r"Expected `float \| null`, got `str` - at `\$\.number`"),
        (GOOD + ', "number": true}', r"got `bool` - at `\$\.number`"),
        ('{"format": "test.note", "version": 3}', r"missing required field `text`"),
    ],
)
def test_other_files_are_refused(data, message):
    with pytest.raises(AttentropyError, match=message):
        read(data)
