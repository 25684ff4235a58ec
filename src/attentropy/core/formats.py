"""Files that attentropy writes as JSON: each says its format and version, and is read strictly.

A kind of file is a msgspec Struct with `tag_field="format"`, the format as its tag, and a field
`version` whose default is the version that this attentropy reads and writes.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


def encode(value: msgspec.Struct, *, indent: int = 0) -> bytes:
    """The text of a file; numbers that are not finite become null.

    Bytes of a file's name that are not UTF-8, which Python keeps as lone surrogates, become "?".

    Args:
        value: what to write.
        indent: the number of spaces that lines are indented by; 0 for one line.
    """
    try:
        text = msgspec.json.encode(value)
    except UnicodeEncodeError:
        text = msgspec.json.encode(_without_surrogates(msgspec.to_builtins(value)))
    return (msgspec.json.format(text, indent=indent) if indent else text) + b"\n"


def printable(name: str) -> str:
    r"""The name of a file with "?" for each byte that is not UTF-8.

    Args:
        name: as Python gives it, such bytes as lone surrogates.

    >>> printable("na\udcffme.txt")
    'na?me.txt'
    """
    return name.encode("utf-8", "replace").decode("utf-8")


def _without_surrogates(value: Any) -> Any:
    match value:
        case str():
            return printable(value)
        case dict():
            return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}
        case list() | tuple():
            return [_without_surrogates(v) for v in value]
        case _:
            return value


def decode(data: bytes | str, kind: type[T], *, name: str, error: Callable[[str], Exception]) -> T:
    """Read a file that `encode` wrote.

    Args:
        data: the text of the file.
        kind: what it must hold.
        name: how messages call the file.
        error: makes the exception that is raised, from a sentence, if the file is not JSON, has
            another format or version, or breaks the schema.
    """
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise error(f"{name} is not JSON: {problem}") from problem
    except RecursionError as problem:
        raise error(f"{name} is nested too deep for any file of {_format(kind)}") from problem
    _check_kind(found, kind, name=name, error=error)
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as problem:
        raise error(f"{name} breaks the schema of {_format(kind)}: {problem}") from problem


def _check_kind(
    found: Any, kind: type[msgspec.Struct], *, name: str, error: Callable[[str], Exception]
) -> None:
    wanted = _format(kind)
    # scans of version 1 had their format in the field "schema"
    if not isinstance(found, dict) or found.get("format", found.get("schema")) != wanted:
        raise error(f"{name} is not a file of {wanted}: its field 'format' does not say so")
    version = next(f.default for f in msgspec.structs.fields(kind) if f.name == "version")
    if found.get("version") != version:
        had = found.get("version")
        raise error(f"{name} has version {had!r} of {wanted}; this attentropy reads {version}")


def _format(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag)
