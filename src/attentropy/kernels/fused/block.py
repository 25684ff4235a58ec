"""The blocks of arguments that compiled code reads: structs of cpp/args.h, filled by name.

The header is the only description of the layout. A field that is not given is zero.
"""

import re
import struct
from collections.abc import Mapping

from torch import Tensor

from attentropy.kernels.fused.build import CPP

Words = tuple[float, ...]
Fields = Mapping[str, Words]


def layout(header: str, name: str = "Args") -> dict[str, str]:
    """Names of the fields of a struct in their order, each with its format for `struct`.

    An array belongs to the pointer before it.

    Args:
        header: the text of a C++ header.
        name: of the struct.

    >>> layout("struct Args { int64_t B, H; const char* q; int64_t qs[3]; double cap; };")
    {'B': 'q', 'H': 'q', 'q': 'qqqq', 'cap': 'd'}
    """
    text = re.sub(r"//.*", "", header)
    body = text.partition(f"struct {name} {{")[2].partition("};")[0]
    fields: dict[str, str] = {}
    for declaration in filter(None, map(str.strip, body.split(";"))):
        kind, names = declaration.removeprefix("const ").replace("*", " ").split(maxsplit=1)
        for one in names.split(","):
            word, _, count = one.strip().rstrip("]").partition("[")
            if count:
                fields[next(reversed(fields))] += "q" * int(count)
            else:
                fields[word] = "d" if kind == "double" and "*" not in declaration else "q"
    return fields


class Struct:
    """A struct of cpp/args.h.

    Args:
        name: of the struct.
    """

    def __init__(self, name: str) -> None:
        self.layout = layout((CPP / "args.h").read_text(encoding="utf-8"), name)
        self._zeros: dict[str, Words] = {n: (0,) * len(kind) for n, kind in self.layout.items()}
        self.pack = struct.Struct("".join(self.layout.values())).pack

    def words(self, *parts: Fields) -> list[float]:
        """All fields in their order, as `pack` takes them.

        Args:
            parts: fields by name; names that the struct lacks come last, and are too many.
        """
        words: list[float] = []
        for value in {**self._zeros, **{n: x for part in parts for n, x in part.items()}}.values():
            words += value
        return words

    def place(self, name: str) -> int:
        """Where a field starts among the words.

        Args:
            name: of the field.
        """
        names = list(self.layout)
        return sum(len(self.layout[n]) for n in names[: names.index(name)])


ARGS = Struct("Args")


def block(*parts: Fields) -> bytes:
    """A struct Args with these fields; raises struct.error if it lacks one.

    Args:
        parts: fields that describe a call, its results, and gradients.
    """
    return ARGS.pack(*ARGS.words(*parts))


def pointer(x: Tensor | None) -> Words:
    """The address of a tensor; 0 for None.

    Args:
        x: a tensor, or None.
    """
    return (0 if x is None else x.data_ptr(),)


def heads(x: Tensor) -> Words:
    """Address and strides of a tensor [B,H,N,D] whose last stride is 1.

    Args:
        x: queries, keys, values, or what is shaped like them.
    """
    return x.data_ptr(), *x.stride()[:3]


def spread(x: Tensor, shape: tuple[int, ...]) -> Words:
    """Address and strides of a tensor that broadcasts to `shape`; 0 where it does.

    Args:
        x: a tensor that broadcasts.
        shape: what it broadcasts to.
    """
    if x.dim() != len(shape):
        x = x.expand(shape)
    return x.data_ptr(), *[0 if n == 1 else s for n, s in zip(x.shape, x.stride(), strict=True)]
