"""Machine code is read with the compiler's own schedule."""

from collections import Counter

from attentropy.kernels.triton.ahead.model.sass import NO_BOARD, Loop, loops, parse
from tests.kernels.triton.ahead.model.recordings import code

SNIPPET = """
.L_x_0:
        /*0100*/                   IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28] ;  /* 0x00000a00ff017624 */
                                                                            /* 0x000fe400078e00ff */
        /*0110*/              @!P0 LDG.E R2, [R4.64] ;                      /* 0x0000000000207919 */
                                                                            /* 0x004ea20000002500 */
        /*0120*/               @P1 BRA `(.L_x_0) ;                          /* 0x0000000000207919 */
                                                                            /* 0x000fea000383ffff */
.L_x_1:
        /*0130*/                   BRA `(.L_x_1) ;                          /* 0x0000000000207919 */
                                                                            /* 0x000fc0000383ffff */
"""


def test_opcode_operands_guard_and_schedule():
    move, load, branch, spin = parse(SNIPPET).instructions
    assert (move.name, move.opcode, move.guard, move.stall) == ("IMAD", "IMAD.MOV.U32", "", 2)
    assert (move.writes, move.reads, move.waits) == (NO_BOARD, NO_BOARD, ())
    assert (load.guard, load.operands, load.writes, load.waits) == ("@!P0", "R2, [R4.64]", 2, (2,))
    assert (branch.name, spin.name) == ("BRA", "BRA")


def test_a_branch_back_is_a_loop_and_a_branch_to_itself_is_none():
    found = parse(SNIPPET)
    assert loops(found) == [Loop(0, 2)]
    assert len(found.body(Loop(0, 2))) == 3


def test_of_nested_loops_the_innermost():
    text = SNIPPET.replace("`(.L_x_1)", "`(.L_x_9)")
    outer = ".L_x_9:\n" + text.replace(".L_x_0:", ".L_x_0:" + _nothing(4))
    found = loops(parse(outer))
    assert [loop.first for loop in found] == [0]
    assert found[0].last < len(parse(outer).instructions) - 1


def _nothing(count):
    line = "/*00{0:02x}*/ NOP ; /* 0x0000000000007918 */\n /* 0x000fc00000000000 */\n"
    return "\n" + "".join(line.format(n) for n in range(count))


def test_a_recorded_loop():
    found = code("forward_sm80")
    (loop,) = loops(found)
    names = Counter(x.name for x in found.body(loop))
    # two products of 16 x 16 x 16, each of two instructions of 16 x 8 x 16
    assert names["HMMA"] == 4
    assert names["MUFU"] == 10  # 8 weights of a thread, and a factor for each of its two rows
