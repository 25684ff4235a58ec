"""Tile sizes change nothing but speed, and tuning over them leaves no trace."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from attentropy.kernels.triton.configs import TABLE, TileSizes
from attentropy.kernels.triton.launch import Launch
from attentropy.kernels.triton.plan_backward import Cotangents, Needs, plan_backward
from attentropy.kernels.triton.plan_forward import plan_forward
from attentropy.kernels.triton.problem import Problem

CHOICES = (
    TileSizes("square", 16, 16, 4, 1),
    TileSizes("wide", 16, 64, 4, 1),
    TileSizes("tall", 64, 16, 4, 1),
)
PARTS = TileSizes("parts", 32, 16, 4, 1, part=16)


def problem():
    torch.manual_seed(3)
    q, k, v = torch.randn(1, 2, 37, 24), torch.randn(1, 1, 53, 24), torch.randn(1, 1, 53, 20)
    hi = (torch.arange(37) + 17).int().expand(1, 1, 37)
    bias = torch.randn(1, 2, 1, 53)
    return Problem(q=q, k=k, v=v, scale=torch.full((1, 1, 1), 0.25), lo=hi - 20, hi=hi, bias=bias)


@cache
def results(config):
    launches, written = plan_forward(problem())
    for one in launches:
        one.start_with(config)
    gradients = Cotangents(*(torch.ones_like(x) for x in (written[0], *written[1:3], written[5])))
    launches, found = plan_backward(problem(), written, gradients, Needs(True, True, False))
    for one in launches:
        one.start_with(config)
    return [*written, found.q, found.k, found.v, found.scale, found.bias]


@pytest.mark.parametrize("config", [*CHOICES[1:], PARTS], ids=lambda c: c.name)
def test_tile_sizes_change_nothing(config):
    want = results(CHOICES[0])
    for a, b in zip(results(config), want, strict=True):
        torch.testing.assert_close(a, b, atol=2e-6, rtol=1e-5)


def test_tuning_takes_the_fastest_and_clears_what_the_trials_added():
    _, written = plan_forward(problem())
    for one in plan_forward(problem())[0]:
        one.start()
    written = tuple(torch.rand_like(x.float()) for x in written)
    gradients = Cotangents(written[0], None, None, None)
    runs = []

    def bench(kernel_call, quantiles):
        kernel_call()
        runs.append(len(runs))
        return [3.0 - len(runs)] * 3

    def sweep():
        shape = plan_forward(problem())[1]._replace(
            out=written[0], max_logit=written[3] + 5, log_l=written[6]
        )
        launches, found = plan_backward(problem(), shape, gradients, Needs(False, True, False))
        launches[0].start()
        return replace(launches[1], choices=CHOICES), found

    tuned, found = sweep()
    assert tuned.start_tuned(bench).name == "tall"
    assert len(runs) == 3
    plain, want = sweep()
    plain.start_with(CHOICES[0])
    torch.testing.assert_close(found.bias, want.bias)
    tuned, _ = sweep()
    tuned.start_tuned(bench)
    assert len(runs) == 3, "the same bucket is not timed again"


def test_the_interpreter_takes_the_parts_of_the_configuration(monkeypatch):
    started = []
    monkeypatch.setattr(Launch, "start_with", lambda self, config: started.append(config))
    for one in plan_forward(problem())[0]:
        one.start()
    assert [x.part for x in started] == [0, 16]


def test_the_set_of_tile_sizes_is_small_and_named():
    for kernel, kinds in TABLE.items():
        for widths in kinds.values():
            assert sorted(widths) == [16, 32, 64, 128, 256], kernel
            for choices in widths.values():
                assert 1 <= len(choices) <= 3
                assert len({c.name for c in choices}) == len(choices)
