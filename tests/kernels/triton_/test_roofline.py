from pathlib import Path

from attentropy.kernels.triton_.roofline import (
    Shape,
    best_time,
    flops,
    markdown,
    statistics_share,
    traffic,
)

SHAPE = Shape(heads=1, length=1000, width=64)


def test_written_out():
    assert flops(SHAPE, 2) == 4 * 1000 * 1000 * 64
    assert traffic(SHAPE, 4) == 1000 * (4 * 64 * 2 + 24)


def test_the_bound_is_the_slower_of_both():
    by_memory = best_time(Shape(heads=1, length=1, width=64), arch=80, products=2, tensors=4)
    assert by_memory == traffic(Shape(heads=1, length=1, width=64), 4) / 2.0e12
    assert best_time(SHAPE, arch=80, products=2, tensors=4) == flops(SHAPE, 2) / 312e12


def test_statistics_are_at_most_four_percent_from_a_width_of_64():
    assert statistics_share(64) <= 0.04
    assert statistics_share(32) > 0.04


def test_the_docs_hold_this_table():
    assert markdown() in (Path(__file__).parents[3] / "docs" / "gpu.md").read_text()
