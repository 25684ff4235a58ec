"""The block of arguments is laid out as the compiler lays out struct Args, and filled by name."""

import struct
import subprocess

import pytest
import torch

from attentropy.kernels.fused import block as blocks
from attentropy.kernels.fused.block import block, heads, layout, pointer, spread
from attentropy.kernels.fused.build import CPP, compiler

HEADER = (CPP / "args.h").read_text()


def words(data, kinds):
    return struct.unpack(kinds, data)


def test_arrays_belong_to_the_pointer_before_them():
    text = """
    struct Other { int64_t no; };
    struct Args {
        int64_t B, H;  // sizes, not[2]
        const char* q;
        int64_t qs[3];
        double cap;
        float *entropy, *lse;
    };
    """
    assert layout(text) == {
        "B": "q", "H": "q", "q": "qqqq", "cap": "d", "entropy": "q", "lse": "q"
    }  # fmt: skip


@pytest.mark.skipif(compiler() is None, reason="no compiler")
@pytest.mark.parametrize("struct_name", ["Args", "Summary"])
def test_every_field_is_where_the_compiler_has_it(tmp_path, struct_name):
    fields, at, prints = layout(HEADER, struct_name), 0, []
    assert fields
    for name, kind in fields.items():
        prints.append(f'check("{name}", offsetof({struct_name}, {name}), {at});')
        at += 8 * len(kind)
    source = f"""
    #include <cstddef>
    #include <cstdio>
    #include "{CPP / "args.h"}"
    static int wrong = 0;
    static void check(const char* name, size_t got, size_t want) {{
        if (got != want) std::printf("%s at %zu, not %zu\\n", name, got, want), wrong = 1;
    }}
    int main() {{
        {" ".join(prints)}
        check("the end", sizeof({struct_name}), {at});
        return wrong;
    }}
    """
    (tmp_path / "check.cpp").write_text(source)
    made = tmp_path / "check"
    subprocess.run([*compiler(), str(tmp_path / "check.cpp"), "-o", str(made)], check=True)
    done = subprocess.run([str(made)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_fields_stand_in_the_order_of_the_header_and_others_are_zero():
    kinds = "".join(layout(HEADER).values())
    data = block(
        {"H": (2,), "B": (1,), "softcap": (0.5,)}, {"out": (7, 8, 9, 10)}, {"dq": (4, 3, 2, 1)}
    )
    found = iter(words(data, kinds))
    values = {n: tuple(next(found) for _ in kind) for n, kind in layout(HEADER).items()}
    assert (values.pop("B"), values.pop("H"), values.pop("softcap")) == ((1,), (2,), (0.5,))
    assert (values.pop("out"), values.pop("dq")) == ((7, 8, 9, 10), (4, 3, 2, 1))
    assert not any(x for value in values.values() for x in value)


@pytest.mark.parametrize("fields", [{"temperature": (1,)}, {"q": (1, 2, 3)}, {"B": (1, 2)}])
def test_fields_that_the_header_lacks_or_has_otherwise(fields):
    with pytest.raises(struct.error):
        block(fields, {})


def test_addresses_and_strides():
    x = torch.randn(2, 3, 4, 5).transpose(1, 2)
    assert pointer(None) == (0,)
    assert pointer(x) == (x.data_ptr(),)
    assert heads(x) == (x.data_ptr(), *x.stride()[:3])
    row = torch.randn(1, 4, 1)
    assert spread(row, (2, 4, 7)) == (row.data_ptr(), 0, 1, 0)
    one = torch.tensor(3.0)
    assert spread(one, (2, 4, 7)) == (one.data_ptr(), 0, 0, 0)


def test_the_layout_is_read_once():
    assert layout(HEADER) == blocks.ARGS.layout
