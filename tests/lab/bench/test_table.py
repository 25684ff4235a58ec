import torch

from attentropy.lab.bench import contenders, table


def test_the_default_table_is_complete():
    assert len(table.cases()) == len(set(table.cases())) == len(table.BARS) == 27
    assert table.BARS[contenders.BenchCase(1, 8, 2048, 64, torch.float32, True, True)] == 0.65


def test_the_shapes_of_the_table_in_bfloat16_each_once():
    moved = table.on_cuda(table.cases())
    assert len(moved) == len(set(moved)) == 19
    assert {(case.dtype, case.device) for case in moved} == {(torch.bfloat16, "cuda")}
    assert {case[:4] for case in moved} == {case[:4] for case in table.cases()}
    assert any(case.backward for case in moved)
    assert len(table.on_cuda(table.quick_cases())) == 4


def test_quick_cases_are_one_shape_in_every_kind():
    quick = table.quick_cases()
    assert {case[:4] for case in quick} == {(1, 4, 512, 64)}
    assert len(quick) == len(set(quick)) == 2 * len(table.KINDS)


def test_every_bar_is_a_ratio_that_a_kernel_can_miss():
    assert all(0 < bar <= 1.1 for bar in table.BARS.values())
    causal = contenders.BenchCase(1, 8, 2048, 64, causal=True)
    assert table.BARS[causal] < table.BARS[causal._replace(causal=False)]
