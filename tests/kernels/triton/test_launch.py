"""Tile sizes change nothing but speed."""

from functools import cache

import pytest
import torch

from attentropy.kernels.packing import INPUTS
from attentropy.kernels.softmax_results import FLOWING
from attentropy.kernels.triton.configs import TileSizes
from attentropy.kernels.triton.launch import Launch, sizes
from attentropy.kernels.triton.plan_backward import plan_backward
from attentropy.kernels.triton.plan_forward import plan_forward
from tests.kernels.triton.problems import problem as made

pytestmark = pytest.mark.interpreter

CHOICES = (
    TileSizes(16, 16, 4, 1),
    TileSizes(16, 64, 4, 1),
    TileSizes(64, 16, 4, 1),
)
PARTS = TileSizes(32, 16, 4, 1, part=16)


def problem():
    torch.manual_seed(3)
    q, k, v = torch.randn(1, 2, 37, 24), torch.randn(1, 1, 53, 24), torch.randn(1, 1, 53, 20)
    hi = (torch.arange(37) + 17).int().expand(1, 1, 37)
    bias = torch.randn(1, 2, 1, 53)
    scale = torch.full((1, 1, 1), 0.25)
    return made(q, k, v, scale=scale, lo=hi - 20, hi=hi, bias=bias)


def needs(*names):
    return {name: name in names for name in INPUTS}


@cache
def results(config):
    launches, written = plan_forward(problem())
    for one in launches:
        one.start_with(config)
    gradients = {name: torch.ones_like(getattr(written, name)) for name in FLOWING}
    launches, found = plan_backward(problem(), written, gradients, needs("scale", "bias"))
    for one in launches:
        one.start_with(config)
    gradient = {f"d{name}": found[name] for name in ("q", "k", "v", "scale", "bias")}
    return {**written._asdict(), **gradient}


@pytest.mark.parametrize("config", [*CHOICES[1:], PARTS], ids=str)
def test_tile_sizes_change_nothing(config):
    want = results(CHOICES[0])
    for name, found in results(config).items():
        # varentropy flows into it: sums over keys of squared distances to the mean, which cancel
        atol = 2e-5 if name == "dscale" else 2e-6
        torch.testing.assert_close(found, want[name], atol=atol, rtol=1e-5, msg=name)


def test_the_interpreter_takes_the_parts_of_the_configuration(monkeypatch):
    started = []
    monkeypatch.setattr(Launch, "start_with", lambda self, config: started.append(config))
    for one in plan_forward(problem())[0]:
        one.start()
    assert [x.part for x in started] == [0, 16, 0]


def test_a_kernel_gets_the_sizes_that_it_has():
    forward = plan_forward(problem())[0][0].kernel
    assert sizes(forward, PARTS) == {"BLOCK": 32, "TILE": 16, "PART": 16}
    rowwise = plan_backward(problem(), *results_and_gradient(), needs())[0][0].kernel
    assert sizes(rowwise, PARTS) == {"BLOCK": 32}


def results_and_gradient():
    written = plan_forward(problem())[1]
    return written, {"out": torch.ones_like(written.out)}
