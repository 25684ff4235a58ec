"""The tables of tile sizes."""

import pytest

from attentropy.kernels.triton.configs import (
    GENERATIONS,
    HALF,
    LADEN,
    PRECISE,
    SAFE,
    SPREAD,
    WIDTHS,
    TileSizes,
    tile_sizes,
)

KERNELS = ("forward", "queries", "keys", "decode")


def every_table():
    yield from (HALF[kernel][arch] for kernel in HALF for arch in GENERATIONS)
    yield from LADEN.values()
    yield from (rows for kinds in PRECISE.values() for rows in kinds.values())
    yield SAFE
    yield from SPREAD.values()


def test_sizes_are_powers_of_two_that_the_hardware_takes():
    for rows in every_table():
        assert set(rows) - {96} == set(WIDTHS)
        for one in rows.values():
            for size in (one.block, one.tile, one.warps):
                assert size & (size - 1) == 0
            assert min(one.block, one.tile) >= 16
            assert 0 < one.registers <= 255


@pytest.mark.parametrize("kernel", ["forward", "queries", "keys"])
@pytest.mark.parametrize("arch", GENERATIONS)
def test_no_more_warps_than_rows_for_them(kernel, arch):
    """A warp multiplies 16 rows at least: more warps would multiply the same rows twice."""
    for tiles in (tiles for width, tiles in HALF[kernel][arch].items() if width <= 128):
        assert tiles.block >= 16 * tiles.warps


@pytest.mark.parametrize("kernel", ["forward", "queries", "keys"])
def test_no_more_warps_than_rows_of_narrow_float32_heads(kernel):
    for width in (16, 32, 64):
        tiles = PRECISE[False][kernel][width]
        assert tiles.block >= 16 * tiles.warps


def test_a_card_takes_the_sizes_of_its_generation():
    asked = {"width": 64}
    for kernel in KERNELS:
        assert tile_sizes(kernel, arch=100, **asked) == HALF[kernel][90][64]
        assert tile_sizes(kernel, arch=70, **asked).block == HALF[kernel][80][64].block


@pytest.mark.parametrize("arch", [86, 89, 120])
def test_cards_with_little_shared_memory_have_two_stages_at_most(arch):
    for kernel in KERNELS:
        for width in WIDTHS:
            assert tile_sizes(kernel, arch=arch, width=width).stages <= 2


def test_laden_and_precise_calls_have_tile_sizes_of_their_own():
    assert tile_sizes("keys", arch=80, width=64, laden=True) == LADEN["keys"][64]
    assert tile_sizes("keys", arch=90, width=64, precise=True) == PRECISE[False]["keys"][64]
    assert tile_sizes("safe", arch=90, width=64) == SAFE[64]
    assert tile_sizes("spread", arch=90, width=64, precise=True) == SPREAD[True][64]


def test_all_columns_at_once_unless_said_otherwise():
    assert TileSizes(16, 16, 4, 1).part == 0


def test_a_width_between_those_of_the_table_takes_the_next():
    assert tile_sizes("forward", arch=80, width=80) == HALF["forward"][80][96]
    assert tile_sizes("queries", arch=80, width=96) == HALF["queries"][80][128]
    assert tile_sizes("safe", arch=80, width=96) == SAFE[128]
