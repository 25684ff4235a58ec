"""Tuning on a card that is the CPU, with a clock of our own."""

import pytest
import torch

from attentropy.kernels.triton.configs import TileSizes, tile_sizes
from attentropy.lab.bench import tuning
from attentropy.lab.bench.tuning import candidates, fastest, launches, tuned


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("kernel", tuning.KERNELS)
def test_candidates_are_the_table_and_its_neighbours(kernel, arch):
    found = candidates(kernel, arch=arch, width=64)
    assert found[0] == tile_sizes(kernel, arch=arch, width=64)
    assert 4 <= len(found) == len(set(found)) <= 12
    for one in found:
        assert 16 <= one.tile <= 128


class Fake:
    kernel = launches

    def start_with(self, tiles):
        if tiles.stages > 2:
            raise RuntimeError("out of resource")


def test_the_fastest_that_runs():
    times = iter([3.0, 2.0])

    def timer(call):
        call()
        return next(times)

    said = []
    choices = [TileSizes(16, 16, 4, 3), TileSizes(16, 16, 4, 1), TileSizes(32, 16, 4, 2)]
    assert fastest(Fake(), choices, timer=timer, say=said.append) == (choices[2], 2.0)
    assert len(said) == 3
    assert said[0].endswith("RuntimeError")


def test_every_sweep_is_tuned(monkeypatch):
    small = dict.fromkeys(tuning.KERNELS, Fake())
    monkeypatch.setattr(tuning, "launches", lambda width: small)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    found = list(tuned(widths=(64,), say=lambda text: None, timer=lambda call: 1.0))
    assert [x.kernel for x in found] == list(tuning.KERNELS)
    assert {(x.arch, x.width, x.milliseconds) for x in found} == {(90, 64, 1.0)}


def test_sweeps_are_those_of_a_causal_call(monkeypatch):
    monkeypatch.setattr(tuning, "LENGTH", 20)
    monkeypatch.setattr(tuning, "HEADS", 1)
    found = launches(16, device="cpu")
    names = [x.kernel.__name__ for x in found.values()]
    assert names == ["forward", "queries_backward", "keys_backward"]
