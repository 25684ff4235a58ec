"""The block of arguments that the compiled passes read: struct Args of cpp/args.h, filled by name.

The header is the only description of the layout. A field that is not given is zero.
"""

import re
import struct
from collections.abc import Mapping

from torch import Tensor

from attentropy.kernels.fused.build import CPP

Words = tuple[float, ...]
Fields = Mapping[str, Words]


def layout(header: str) -> dict[str, str]:
    """Names of the fields of struct Args in their order, each with its format for `struct`.

    An array belongs to the pointer before it.

    Args:
        header: the text of a C++ header.

    >>> layout("struct Args { int64_t B, H; const char* q; int64_t qs[3]; double cap; };")
    {'B': 'q', 'H': 'q', 'q': 'qqqq', 'cap': 'd'}
    """
    text = re.sub(r"//.*", "", header)
    body = text.partition("struct Args {")[2].partition("};")[0]
    fields: dict[str, str] = {}
    for declaration in filter(None, map(str.strip, body.split(";"))):
        kind, names = declaration.removeprefix("const ").replace("*", " ").split(maxsplit=1)
        for name in names.split(","):
            word, _, count = name.strip().rstrip("]").partition("[")
            if count:
                fields[next(reversed(fields))] += "q" * int(count)
            else:
                fields[word] = "d" if kind == "double" else "q"
    return fields


_LAYOUT = layout((CPP / "args.h").read_text(encoding="utf-8"))
_ZEROS: dict[str, Words] = {name: (0,) * len(kind) for name, kind in _LAYOUT.items()}
_packed = struct.Struct("".join(_LAYOUT.values())).pack


def block(inputs: Fields, results: Fields, grads: Fields | None = None) -> bytes:
    """The block with the fields of all three; raises struct.error if struct Args lacks one.

    Args:
        inputs: fields that describe a call.
        results: fields that describe where results are.
        grads: fields that describe gradients; none in a forward pass.
    """
    words: list[float] = []
    # in the order of struct Args; names that it lacks come after them, and are too many
    for value in {**_ZEROS, **inputs, **results, **(grads or {})}.values():
        words += value
    return _packed(*words)


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
