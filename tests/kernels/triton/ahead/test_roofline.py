from pathlib import Path

import pytest

from attentropy.kernels.triton.ahead.model.cards import CARDS
from attentropy.kernels.triton.ahead.roofline import (
    PASSES,
    CallShape,
    DecodeShape,
    best_time,
    decode_markdown,
    decode_traffic,
    flops,
    markdown,
    passed_by,
    statistics_share,
    traffic,
)
from attentropy.kernels.triton.configs import WIDTHS

SHAPE = CallShape(heads=1, length=1000, width=64)


def test_written_out():
    assert flops(SHAPE, 2) == 4 * 1000 * 1000 * 64
    assert traffic(SHAPE, 4) == 1000 * (4 * 64 * 2 + 32)


def test_the_bound_is_the_slower_of_both():
    by_memory = best_time(CallShape(heads=1, length=1, width=64), arch=80, products=2, tensors=4)
    assert by_memory == traffic(CallShape(heads=1, length=1, width=64), 4) / 2.0e12
    assert best_time(SHAPE, arch=80, products=2, tensors=4) == flops(SHAPE, 2) / 312e12


def test_statistics_are_at_most_four_percent_from_a_width_of_64():
    assert statistics_share(64) <= 0.04
    assert statistics_share(32) > 0.04
    assert statistics_share(32, "queries") <= 0.04
    assert statistics_share(32, "keys") <= 0.04
    assert statistics_share(10**6, "keys") == pytest.approx(6 / 8e6, rel=1e-3)


def test_small_blocks_let_more_bytes_pass():
    assert passed_by(SHAPE, 100) == 10 * 2 * 1000 * 64 * 2
    assert passed_by(SHAPE, 1000) == 2 * 1000 * 64 * 2


def test_every_width_of_two_byte_inputs_has_a_row():
    table = markdown().splitlines()[2:]
    assert len(table) == len(PASSES) * len(WIDTHS)


def test_the_docs_hold_this_table():
    page = (Path(__file__).parents[4] / "docs" / "gpu.md").read_text()
    assert markdown() in page
    assert decode_markdown() in page


def test_decoding_counts_every_byte_once_and_the_states_of_shares_twice():
    shape = DecodeShape(keys=4096, batch=1, heads=4, key_heads=1, width=64)
    found = decode_traffic(shape, arch=80)
    least = 2 * 4096 * 64 * 2 + 4 * (2 * 64 * 2 + 6 * 4 + 8)
    moved = 4 * found.shares * 2 * (64 + 6) * 4
    assert found.shares == 32
    assert found.excess == round(1 + moved / least, 3)


@pytest.mark.parametrize("arch", CARDS)
@pytest.mark.parametrize("batch", [1, 2, 8, 64])
@pytest.mark.parametrize("keys", [4096, 5000, 65536, 10**6])
@pytest.mark.parametrize("heads", [8, 32, 64])
def test_decoding_fills_the_card_for_at_most_a_tenth_more_bytes(arch, batch, keys, heads):
    found = decode_traffic(DecodeShape(keys=keys, batch=batch, heads=heads), arch=arch)
    assert found.programs >= 0.95 * CARDS[arch].processors
    assert found.excess <= 1.1


def test_a_card_that_is_not_full_comes_before_bytes():
    """All query heads on one key head: leaner shares would leave most processors idle."""
    found = decode_traffic(DecodeShape(keys=4096, heads=32, key_heads=1), arch=80)
    assert found.programs == 4096 // 128
    assert found.excess > 1.1
