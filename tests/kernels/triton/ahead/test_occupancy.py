"""Warps that are resident at once, by the rules of the vendor."""

import pytest

from attentropy.kernels.triton.ahead.occupancy import resident_warps


@pytest.mark.parametrize(
    ("taken", "warps"),
    [
        ({"arch": 80, "registers": 255, "shared": 0, "warps": 8}, 8),
        ({"arch": 80, "registers": 128, "shared": 0, "warps": 4}, 16),
        ({"arch": 80, "registers": 32, "shared": 100 * 1024, "warps": 4}, 4),
        ({"arch": 90, "registers": 32, "shared": 100 * 1024, "warps": 4}, 8),
        ({"arch": 80, "registers": 32, "shared": 200 * 1024, "warps": 4}, 0),
        ({"arch": 100, "registers": 16, "shared": 0, "warps": 4}, 64),
    ],
)
def test_resident_warps(taken, warps):
    assert resident_warps(**taken) == warps
