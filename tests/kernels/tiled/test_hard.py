"""One-hot weights: the value of the strongest key, gradients of the soft ones."""

import pytest
import torch

import attentropy as at
from attentropy.core.resolve import Options, resolve
from attentropy.kernels.softmax_results import rows
from attentropy.kernels.tiled import softmax
from attentropy.kernels.tiled.hard import harden, is_hard


def test_which_weights_are_one_hot():
    assert is_hard(at.Hard())
    assert is_hard(at.Gumbel(hard=True))
    assert not any(map(is_hard, (at.Gumbel(), at.Softmax(), at.Linear())))


def hardened(weights, **given):
    q, k, v = (torch.randn(1, h, n, 8, requires_grad=True) for h, n in ((4, 5), (2, 7), (2, 7)))
    call = resolve(q, k, v, Options(weights=weights, **given))
    soft = rows(softmax.PASSES(call._replace(v=v.detach())))
    return call, soft, harden(call, soft)


@pytest.mark.parametrize("weights", [at.Hard(), at.Hard(straight_through=True)], ids=str)
def test_the_value_of_the_strongest_key(weights):
    call, soft, hard = hardened(weights, mask=~at.causal)
    for h in range(4):
        for i in range(5):
            key = int(soft.argmax[0, h, i])
            want = torch.zeros(8) if key < 0 else call.v[0, h // 2, key]
            torch.testing.assert_close(hard.out[0, h, i], want)
    seen = soft.argmax >= 0
    assert torch.equal(hard.collision, seen.float())
    assert not hard.entropy.any()
    assert torch.equal(hard.lse, soft.max_logit)
    assert not hard.log_l.any()


@pytest.mark.parametrize(
    ("weights", "through"),
    [(at.Hard(), False), (at.Hard(straight_through=True), True), (at.Gumbel(0.7, hard=True), True)],
    ids=str,
)
def test_gradients_of_queries_are_those_of_soft_weights_or_none(weights, through):
    call, soft, hard = hardened(weights)
    g = torch.randn_like(hard.out)
    (d_v,) = torch.autograd.grad(hard.out, call.v, g, retain_graph=True)
    assert d_v.any()
    if through:
        (got,) = torch.autograd.grad(hard.out, call.q, g, retain_graph=True)
        (want,) = torch.autograd.grad(soft.out, call.q, g)
        torch.testing.assert_close(got, want)
    else:
        assert torch.autograd.grad(hard.out, call.q, g, allow_unused=True) == (None,)
