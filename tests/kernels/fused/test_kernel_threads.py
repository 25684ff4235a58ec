"""Threads: torch's pool, several callers at once, forks; the same bits every time."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from attentropy.kernels.fused import kernel as fused
from attentropy.kernels.fused import library
from tests.kernels.fused.cases import ISAS, by_fused, make, run

pytestmark = pytest.mark.skipif(not ISAS, reason="no fused kernel for this CPU")


@pytest.fixture(params=[1, 2, 4])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def own_threads(monkeypatch):
    """As with a torch that does not export its pool."""
    monkeypatch.setattr(library.pool(), "address", 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_same_bits_every_time(threads, dtype):
    call = make((1, 3, 1, 200, 600, 32, 32), ("causal", "bias", "relative"), dtype=dtype)
    first, second = run(call, by_fused), run(call, by_fused)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_own_threads_give_the_same(threads, own_threads):
    call = make((2, 3, 1, 100, 300, 32, 32), ("causal",))
    ours = run(call, by_fused)
    torch.set_num_threads(1)
    alone = run(call, by_fused)
    for name, x in alone.items():
        torch.testing.assert_close(ours[name], x, rtol=1e-5, atol=1e-5)


def test_results_do_not_depend_on_threads_in_the_forward_pass():
    call = make((1, 3, 1, 200, 600, 32, 32), ("causal",))
    want = fused.attend(call)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    got = fused.attend(call)
    torch.set_num_threads(before)
    assert all(torch.equal(x, y) for x, y in zip(got[:6], want[:6], strict=True))


def test_several_python_threads_at_once(threads):
    calls = [make((1, 2, 2, 100 + i, 200, 32, 32), ("causal",), seed=i) for i in range(8)]
    want = [run(call, by_fused) for call in calls]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda call: run(call, by_fused), calls * 4))
    for i, results in enumerate(got):
        assert all(torch.equal(results[n], want[i % 8][n]) for n in results)


def test_bf16_values_of_another_call_are_never_reused():
    call = make((1, 1, 1, 70, 70, 16, 16), dtype=torch.bfloat16)
    first = fused.attend(call).out
    second = fused.attend(call._replace(v=call.v * 2)).out
    assert torch.equal(second, first * 2)


def test_child_of_a_fork(threads):
    call = make((1, 4, 4, 200, 200, 32, 32), ("causal",))
    want = fused.attend(call).out
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(fused.attend(call).out, want) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_inference_mode():
    call = make((1, 2, 2, 20, 20, 8, 8))
    with torch.inference_mode():
        got = fused.attend(call)
    assert torch.equal(got.out, fused.attend(call).out)
