"""Few queries against many keys: shares of the keys whose states are merged."""

import pytest
import torch

import attentropy as at
from attentropy.kernels.triton import plan_forward
from tests.cases import Shape, assert_same, run
from tests.kernels.triton.problems import problem as made

pytestmark = [pytest.mark.usefixtures("poisoned"), pytest.mark.interpreter]

LONG = Shape(batch=1, heads=4, key_heads=2, queries=1, keys=600)


def problem(shape):
    return made(*(x.detach() for x in shape.tensors(torch.float32)))


def test_few_queries_and_many_keys_are_cut_into_shares():
    launches, _ = plan_forward.plan_forward(problem(LONG))
    assert launches[0].args["splits"] > 1
    assert launches[0].args["PACK"]
    assert [x.kernel.__name__ for x in launches] == ["forward", "join", "forward", "spread"]


def test_many_queries_are_not():
    launches, _ = plan_forward.plan_forward(problem(Shape(queries=300, keys=600)))
    assert [x.kernel.__name__ for x in launches] == ["forward", "forward", "spread"]


@pytest.mark.parametrize("keys", [511, 600])
@pytest.mark.parametrize("mask", [None, at.causal & at.lookback(300)], ids=["full", "window"])
def test_shares_give_the_same(mask, keys):
    shape = Shape(batch=1, heads=4, key_heads=2, queries=3, keys=keys)
    tensors = [x.detach() for x in shape.tensors(torch.float32)]
    got = at.attend(*tensors, mask=mask, kernel="triton")
    want = at.attend(*tensors, mask=mask, kernel="reference")
    assert_same((*got, []), (*want, []), atol=2e-6, rtol=1e-5)


def test_a_share_may_see_nothing_and_a_row_too():
    tensors = [x.detach() for x in LONG.tensors(torch.float32)]
    tensors = [torch.cat([x, x]) for x in tensors]
    mask = at.padding(torch.tensor([40, 0]))
    got = at.attend(*tensors, mask=mask, kernel="triton")
    want = at.attend(*tensors, mask=mask, kernel="reference")
    assert_same((*got, []), (*want, []), atol=2e-6, rtol=1e-5)
    assert (got.stats.argmax[1] == -1).all()


def test_gradients_of_a_decoding_step():
    given = {"sink": torch.randn(1), "mask": at.causal}
    tensors = Shape(batch=1, heads=1, key_heads=1, queries=1, keys=520).tensors(torch.float32)
    want = run("reference", tensors, given)
    assert_same(run("triton", tensors, given), want, atol=2e-6, rtol=1e-5)
