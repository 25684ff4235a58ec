"""The table of tile sizes."""

from attentropy.kernels.triton.configs import TABLE, TileSizes, configs


def test_the_set_of_tile_sizes_is_small_and_named():
    for kernel, kinds in TABLE.items():
        for widths in kinds.values():
            assert sorted(widths) == [16, 32, 64, 128, 256], kernel
            for choices in widths.values():
                assert 1 <= len(choices) <= 3
                assert len({c.name for c in choices}) == len(choices)


def test_laden_calls_have_tile_sizes_of_their_own():
    plain = configs("keys", width=64, precise=False, laden=False)
    laden = configs("keys", width=64, precise=False, laden=True)
    assert plain == TABLE["keys"][False][64]
    assert laden == TABLE["laden keys"][False][64]
    assert laden != plain


def test_sizes_are_powers_of_two_that_the_hardware_takes():
    for kinds in TABLE.values():
        for widths in kinds.values():
            for choices in widths.values():
                for one in choices:
                    for size in (one.block, one.tile, one.warps):
                        assert size & (size - 1) == 0
                    assert min(one.block, one.tile) >= 16
                    assert 0 < one.registers <= 255


def test_all_columns_at_once_unless_said_otherwise():
    assert TileSizes("x", 16, 16, 4, 1).part == 0
