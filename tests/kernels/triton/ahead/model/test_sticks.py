from attentropy.kernels.triton.ahead.model.sticks import STICKS


def test_no_more_warps_than_rows_for_them():
    for kinds in STICKS[False].values():
        for rows in kinds.values():
            assert all(one.block >= 8 * one.warps for one in rows.values())
