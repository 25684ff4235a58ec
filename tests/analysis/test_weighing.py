"""Weights other than softmax: maps, derivatives, robustness, and what is refused with its reason."""

import itertools

import pytest
import torch

import attentropy as at
from tests.analysis.maps import entropy, tensors, weights

an = at.analysis
KINDS = {
    "entmax": at.Entmax(),
    "sparsemax": at.Sparsemax(),
    "hard": at.Hard(),
    "relu squared": at.ReluSquared(),
    "linear": at.Linear(),
    "L1 of relu squared": at.L1(at.ReluSquared()),
    "L1": at.L1(),
    "L2": at.L2(),
    "sigmoid": at.Sigmoid(-1.0),
    "softpick": at.Softpick(),
}
SMOOTH = [name for name in KINDS if name != "hard"]
CAUSAL = at.causal & ~at.prefix(2)  # the first rows see nothing


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("mask", [at.full, CAUSAL], ids=["full", "causal"])
def test_maps_are_those_of_attend(name, mask):
    q, k, _ = tensors()
    got = an.map_dense(q, k, weights=KINDS[name], mask=mask)
    torch.testing.assert_close(got, weights(q, k, weights=KINDS[name], mask=mask))


def changed(q, k, v, kind, mask, delta):
    return at.attend(q, k, v, weights=kind, mask=mask, bias=delta, kernel="reference").out


@pytest.mark.parametrize("name", SMOOTH)
def test_the_jacobian_is_that_of_differences(name):
    q, k, v = tensors(batch=1, queries=5, keys=5)
    got = an.jacobian_norm(q, k, v, weights=KINDS[name], mask=at.causal)
    square, step = torch.zeros(1, 4, 5).double(), 1e-6
    for j in range(5):
        delta = torch.zeros(5, 5).double()
        delta[:, j] = step
        up, down = (changed(q, k, v, KINDS[name], at.causal, sign * delta) for sign in (1, -1))
        square += ((up - down) / (2 * step)).square().sum(-1)
    torch.testing.assert_close(got, square.sqrt(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_measured_error_is_that_of_noise_added_as_a_bias(name):
    q, k, v = tensors(batch=1, heads=2, kv_heads=2, queries=6, keys=6)
    noise = an.Noise(0.3)
    got = an.measured_error(q, k, v, noise, samples=1, seed=4, weights=KINDS[name])
    delta = noise.draw(torch.zeros(2, 6, 6).double(), torch.Generator().manual_seed(4))
    clean = changed(q, k, v, KINDS[name], None, torch.zeros(6, 6).double())
    moved = changed(q, k, v, KINDS[name], None, delta[None])
    wanted = (moved - clean).square().sum(-1).mean((0, 2)).sqrt()
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("correlation", [0.0, 0.7])
def test_small_noise_does_what_the_derivative_predicts(name, correlation):
    q, k, v = tensors(batch=1, heads=2, kv_heads=2, queries=6, keys=6)
    noise = an.Noise(1e-4, correlation=correlation)
    told = an.predicted_error(q, k, v, noise, weights=KINDS[name])
    seen = an.measured_error(q, k, v, noise, samples=200, weights=KINDS[name])
    torch.testing.assert_close(seen, told, rtol=0.1, atol=1e-12)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] if n in ("sparsemax", "entmax") else [])
        for n in SMOOTH
    ],
)
def test_the_worst_change_is_the_worst_of_all_corners(name):
    q, k, v = tensors(batch=1, heads=2, kv_heads=1, queries=4, keys=6)
    worst = an.worst_error(q, k, v, 0.4, weights=KINDS[name])
    corners = 0.4 * torch.tensor(list(itertools.product((-1.0, 1.0), repeat=6))).double()
    clean = changed(q, k, v, KINDS[name], None, torch.zeros(4, 6).double())
    # one corner for every entry of the batch
    many = [x.expand(len(corners), *x.shape[1:]) for x in (q, k, v)]
    moved = changed(*many, KINDS[name], None, corners[:, None, None, :])
    most = (moved - clean).norm(dim=-1).amax(0, keepdim=True)
    assert (worst >= 0.97 * most).all()
    assert ((worst - most).abs() < 1e-9).double().mean() > 0.7


@pytest.mark.slow
def test_probabilities_are_certified_by_the_spread_of_the_values_alone():
    q, k, v = tensors(batch=1, queries=3, keys=5)
    for kind in (at.Entmax(), at.Sparsemax()):
        found = an.compare_errors(q, k, v, 2.0, weights=kind)
        assert (found.worst <= found.certified).all()
        assert torch.equal(found.certified, an.diameter(v).repeat_interleave(2, 1).amax(0))
    assert an.compare_errors(q, k, v, 0.1, weights=at.Linear()).certified.isinf().all()


def test_heads_of_sparse_probabilities_are_compared():
    q, k, _ = tensors()
    p = weights(q, k, weights=at.Sparsemax())
    found = an.compare_heads(q, k, weights=at.Sparsemax())
    torch.testing.assert_close(found.entropy, entropy(p).mean((0, 2)))
    torch.testing.assert_close(found.entropy_of_mean, entropy(p.mean(1)).mean())
    with pytest.raises(NotImplementedError, match="needs probabilities, which Linear"):
        an.compare_heads(q, k, weights=at.Linear())


def test_the_rank_of_other_maps():
    q, k, _ = tensors()
    found = an.causal_rank_dense(q, k, weights=at.Linear(), mask=at.causal)
    wanted = torch.linalg.slogdet(weights(q, k, weights=at.Linear(), mask=at.causal)).logabsdet
    torch.testing.assert_close(found.log_determinant, wanted)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda q, k, v: an.map_dense(q, k, weights=at.Gumbel()), "drawn anew"),
        (lambda q, k, v: an.map_dense(q, k, weights=at.Decay(0.5)), "no logits"),
        (lambda q, k, v: an.live_keys(q, k, weights=at.Sigmoid()), "live_keys is a property of"),
        (lambda q, k, v: an.worst_error(q, k, v, 1.0, weights=at.Hard()), "jumps"),
        (lambda q, k, v: an.predicted_error(q, k, v, an.Noise(1.0), weights=at.Hard()), "jumps"),
        (
            lambda q, k, v: an.predicted_error_dense(
                q, k, v, torch.eye(11).double(), weights=at.L1()
            ),
            "property of Softmax",
        ),
    ],
)
def test_what_cannot_be_told_is_refused_with_its_reason(call, reason):
    with pytest.raises(NotImplementedError, match=reason):
        call(*tensors())
