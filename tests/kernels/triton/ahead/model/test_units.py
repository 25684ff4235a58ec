"""Units, times and products of instructions."""

import pytest

from attentropy.kernels.triton.ahead.model.cards import A100, H100
from attentropy.kernels.triton.ahead.model.sass import Instruction
from attentropy.kernels.triton.ahead.model.units import (
    Pipe,
    busy,
    bytes_per_thread,
    products,
    spills,
    unit_of,
)

WGMMA = Instruction("HGMMA.64x64x16.F32.BF16", "R24, gdesc[UR8], R24, gsb0")


@pytest.mark.parametrize(
    ("opcode", "unit", "cycles"),
    [
        ("FFMA", Pipe.FLOAT, 2.0),
        ("FMNMX", Pipe.INTEGER, 2.0),
        ("MUFU.EX2", Pipe.SPECIAL, 8.0),
        ("HMMA.16816.F32.BF16", Pipe.TENSOR, 8.0),
        ("LDSM.16.M88.4", Pipe.SHARED, 4.0),
        ("LDS.128", Pipe.SHARED, 4.0),
        ("SHFL.BFLY", Pipe.SHUFFLE, 1.0),
        ("LDGSTS.E.BYPASS.128", Pipe.GLOBAL, 32 * 16 / 40),
        ("BRA", Pipe.NONE, 0.0),
    ],
)
def test_which_unit_for_how_long_on_an_a100(opcode, unit, cycles):
    instruction = Instruction(opcode)
    assert unit_of(instruction) == unit
    assert busy(instruction, A100) == pytest.approx(cycles)


def test_float32_is_twice_as_fast_on_an_h100():
    assert busy(Instruction("FADD"), H100) == 1.0


def test_what_a_guard_forbids_takes_its_turn_only():
    assert unit_of(Instruction("LDG.E", guard="@!PT")) == Pipe.NONE


def test_products():
    assert products(Instruction("HMMA.16816.F32.BF16")) == 16 * 8 * 16
    assert products(Instruction("HMMA.1688.F32.TF32")) == 16 * 8 * 8
    assert products(WGMMA) == 64 * 64 * 16 / 4
    assert products(Instruction("FFMA")) == 0
    assert products(Instruction("FFMA"), fma=True) == 32
    assert products(WGMMA, fma=True) == 0


def test_a_warp_group_is_limited_by_multiplying_or_by_reading():
    # 64 x 64 x 16 multiply-adds at 512 per cycle and quarter; 128 rows of 32 bytes at 128 a cycle
    assert busy(WGMMA, H100) == pytest.approx(max(64 * 64 * 16 / 4 / 512, 128 * 32 / 128))


def test_an_opcode_without_a_shape_is_refused():
    with pytest.raises(ValueError, match="the opcode HGMMA names no shape"):
        products(Instruction("HGMMA"))


def test_bytes_and_spills():
    assert [bytes_per_thread(Instruction(x)) for x in ("LDS.128", "LDS.64", "LDS")] == [16, 8, 4]
    assert spills(Instruction("STL"))
    assert not spills(Instruction("STS"))
