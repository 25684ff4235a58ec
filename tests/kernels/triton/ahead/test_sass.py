"""Arithmetic counted in disassembled loops."""

from attentropy.kernels.triton.ahead.sass import instructions, main_loop, operations


def test_counts_the_shortest_loop_that_multiplies_matrices():
    sass = """Function:forward
--:-:-:-:1\tFADD R1, R2, R3;
LBB1:
02:-:-:-:8\tHMMA.16816.F32.BF16 R60, R72.reuse, R40, RZ;
--:-:-:-:1\t@P0 FFMA R1, R2, R3, R4;
--:-:-:-:1\tSHFL.BFLY PT, R1, R2, 0x1, 0x1f;
--:-:-:-:5\t@P1 BRA LBB1;
LBB2:
02:-:-:-:8\tHMMA.16816.F32.BF16 R60, R72.reuse, R40, RZ;
--:-:-:-:1\tFADD R1, R2, R3;
--:-:-:-:1\tFADD R1, R2, R3;
--:-:-:-:1\tFADD R1, R2, R3;
--:-:-:-:5\tBRA LBB2;
LBB3:
--:-:-:-:5\tBRA LBB3;
"""
    loop = main_loop(sass)
    assert loop == ["HMMA", "FFMA", "SHFL", "BRA"]
    assert operations(loop) == 130
    assert instructions(loop) == 2
