import pytest

from attentropy.kernels.triton.ahead.model.cards import A100, CARDS, H100


def test_peaks_are_those_of_the_vendor():
    for card in CARDS.values():
        peak = 2 * 4 * card.tensor * card.processors * card.clock
        assert peak == pytest.approx(card.flops, rel=0.05)


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "programs"),
    [(128, 0, 8, 2), (168, 0, 4, 3), (255, 0, 4, 2), (32, 0, 4, 16), (32, 100_000, 4, 1)],
)
def test_programs_of_a_multiprocessor(registers, shared, warps, programs):
    assert A100.resident(registers=registers, shared=shared, warps=warps) == programs


def test_one_that_does_not_fit():
    assert H100.resident(registers=32, shared=H100.shared, warps=4) == 0
