"""Loops whose cycles can be counted by hand."""

import pytest

from attentropy.kernels.triton.ahead.model.cards import A100
from attentropy.kernels.triton.ahead.model.sass import Instruction
from attentropy.kernels.triton.ahead.model.simulator import Multiprocessor, cycles_per_turn, step


def cycles(*body, warps=4, programs=1):
    return cycles_per_turn(tuple(body), A100, warps=warps, programs=programs)


def test_one_instruction_per_cycle():
    assert cycles(*[Instruction("NOP")] * 10) == pytest.approx(10)


def test_stalls_are_waited_for():
    assert cycles(*[Instruction("NOP", stall=4)] * 10) == pytest.approx(40)


def test_a_second_program_fills_the_stalls():
    body = [Instruction("NOP", stall=4)] * 10
    assert cycles(*body, programs=2) == pytest.approx(20, rel=0.1)


def test_a_unit_takes_its_time():
    assert cycles(*[Instruction("MUFU.EX2")] * 10) == pytest.approx(80)
    assert cycles(*[Instruction("HMMA.16816.F32.BF16")] * 10) == pytest.approx(80)


def test_a_scoreboard_is_waited_for():
    load = Instruction("LDS.128", writes=0)
    use = Instruction("FADD", waits=(0,))
    assert cycles(load, use) > A100.shared_latency
    assert cycles(load, Instruction("FADD")) < A100.shared_latency


def test_copies_in_groups_hide_behind_a_turn():
    copy, commit = Instruction("LDGSTS.E.BYPASS.128"), Instruction("LDGDEPBAR")
    work = [Instruction("NOP")] * 400
    at_once = Instruction("DEPBAR.LE", "SB0, 0x0")
    later = Instruction("DEPBAR.LE", "SB0, 0x1")
    assert cycles(copy, commit, at_once, *work) > 400 + A100.l2_latency
    assert cycles(copy, commit, later, *work) < 400 + A100.l2_latency


def test_warps_meet_at_a_barrier():
    barrier = Instruction("BAR.SYNC")
    assert cycles(barrier, Instruction("NOP")) >= A100.barrier


def test_a_barrier_of_warps_that_never_come_is_an_error():
    barrier = step(Instruction("BAR.SYNC"), A100)
    run = Multiprocessor([barrier], A100, warps=4, programs=1)
    run.warps_per_program = 8  # half of the warps of a program are not there
    run.advance()
    with pytest.raises(RuntimeError, match="wait for each other"):
        run.advance()
