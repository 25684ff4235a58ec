import msgspec
import pytest

from attentropy.scans.errors import ScanError
from attentropy.scans.texts.records import (
    TableGenerated,
    TableLayer,
    TableSide,
    TextTable,
    check,
)


def table(**changes):
    plain = TextTable(
        tokens=["a", "b", "c"],
        left=0,
        layers=[TableLayer("l", 2, True, "self")],
        sides=[TableSide("source", 0, 1), TableSide("target", 1, 2)],
        scopes={"all": {}, "0": {}, "0.1": {}},
        looks={"0.1": {}},
    )
    return msgspec.structs.replace(plain, **changes)


def test_a_table_that_fits_is_read_back():
    check(table())
    again = msgspec.json.decode(msgspec.json.encode(table()), type=TextTable)
    assert again == table()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scopes": {"all": {}, "1": {}}}, "there is no head 1"),
        ({"looks": {"0.2": {}}}, "there is no head 0.2"),
        ({"scopes": {"all": {}}}, "each head of looks"),
        ({"scopes": {"0.1": {}}}, "all heads together"),
        ({"sides": [TableSide("text", 0, 2)]}, "text.sides must hold every token"),
        ({"generated": TableGenerated(4, [], "", {})}, "the place of a token"),
    ],
)
def test_what_types_cannot_say_is_checked(changes, message):
    with pytest.raises(ScanError, match=message):
        check(table(**changes))
