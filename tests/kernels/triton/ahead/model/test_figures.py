"""Figures of recorded loops."""

import pytest

from attentropy.kernels.triton.ahead.model.cards import A100, H100
from attentropy.kernels.triton.ahead.model.figures import (
    Products,
    TurnWork,
    figures,
    limit,
    main_loop,
)
from attentropy.kernels.triton.ahead.model.sass import Instruction
from tests.kernels.triton.ahead.model.recordings import code


def work(**other):
    given = {"pairs": 16 * 16, "products": 2 * 16, "warps": 1, "registers": 64, "shared": 1536}
    return TurnWork(**given | other)


def test_a_loop_of_mma():
    found = figures(code("forward_sm80"), A100, work())
    assert found.waste == 1.0
    assert not found.wgmma
    assert found.programs == 32
    assert found.per_pair == pytest.approx(93 / 8)
    assert 0 < found.percent < 100 * 16 * 16 * 32 / 256 / (93 / 4) / 4


def test_a_loop_of_warp_groups():
    found = figures(code("forward_sm90"), H100, work(pairs=64 * 16, warps=4, registers=60))
    assert found.wgmma
    assert found.waste == 1.0
    assert found.percent > 0


def test_fewer_programs_are_slower():
    many = figures(code("forward_sm80"), A100, work())
    few = figures(code("forward_sm80"), A100, work(shared=80_000))
    assert few.programs == 2
    assert few.percent < many.percent


def test_products_that_are_not_needed_are_counted():
    assert figures(code("forward_sm80"), A100, work(products=16)).waste == 2.0


def test_peaks_of_float32():
    """TF32 runs at half the rate of bfloat16; multiply-adds without tensor cores at one per lane."""
    half = figures(code("forward_sm80"), A100, work()).percent
    tf32 = figures(code("forward_sm80"), A100, work(kind=Products.TF32)).percent
    assert tf32 == pytest.approx(2 * half)
    assert [Products.FLOAT.rate(card) for card in (A100, H100)] == [16, 32]


def test_multiply_adds_of_the_float_units_count_where_they_are_the_products():
    adds = [Instruction("FFMA")] * 3 + [Instruction("FADD")]
    assert work().done(adds) == 0
    assert work(kind=Products.FLOAT).done(adds) == 3 * 32


def test_a_kernel_without_such_a_loop_is_refused():
    with pytest.raises(LookupError, match="no loop multiplies 65536 per warp; loops multiply"):
        main_loop(code("forward_sm80"), work(products=256))


def test_the_unit_that_is_busy_longest():
    special = [Instruction("MUFU.EX2")] * 3
    assert limit(special, A100, 4) == "special"
    assert limit([*special, *[Instruction("NOP")] * 40], A100, 4) == "issue"
    assert limit([Instruction("LDS.128")] * 3, A100, 4) == "shared"
