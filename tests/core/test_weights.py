import math

import pytest
import torch

import attentropy as at
from tests.cases import Shape


def test_gumbel_is_reproducible_with_a_generator():
    q, k, v = Shape().tensors()

    def once(seed):
        generator = torch.Generator().manual_seed(seed)
        return at.attend(q, k, v, weights=at.Gumbel(0.5, generator=generator)).out

    assert torch.equal(once(1), once(1))
    assert not torch.equal(once(1), once(2))


def test_hard_gumbel_samples_the_softmax():
    q = torch.zeros(1, 1, 20000, 1, dtype=torch.float64)
    k = torch.zeros(1, 1, 3, 1, dtype=torch.float64)
    logits = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)
    stats = at.attend(q, k, k, bias=logits, weights=at.Gumbel(2.0, hard=True)).stats
    share = torch.bincount(stats.argmax.flatten(), minlength=3) / 20000
    error = (share - logits.softmax(0)).abs()
    assert (error < 4 * (logits.softmax(0) / 20000).sqrt()).all()


def test_hard_takes_one_value():
    q, k, v = Shape(key_heads=4).tensors()
    out, stats = at.attend(q, k, v, weights=at.Hard(), mask=at.causal)
    want = v.gather(2, stats.argmax[..., None].expand(-1, -1, -1, 8))
    assert torch.equal(out, want)
    assert (stats.entropy == 0).all()
    assert (stats.collision == 1).all()


def test_straight_through_passes_the_gradient_of_softmax():
    q, k, v = Shape().tensors()
    hard = at.attend(q, k, v, weights=at.Hard(straight_through=True)).out
    soft = at.attend(q, k, v).out
    (a,) = torch.autograd.grad(hard.sum(), q)
    (b,) = torch.autograd.grad(soft.sum(), q)
    torch.testing.assert_close(a, b)


def test_relu_squared_divides_by_visible_keys():
    q = torch.ones(1, 1, 4, 1)
    out = at.attend(q, q, q, scale=2.0, mask=at.causal, weights=at.ReluSquared()).out
    torch.testing.assert_close(out.flatten(), torch.full((4,), 4.0))


def test_rows_of_zeros_stay_zero():
    q = torch.zeros(1, 1, 3, 2, requires_grad=True)
    for weights in (at.L1(), at.L2(), at.L2(at.ReluSquared()), at.ReluSquared()):
        out, stats = at.attend(q, q, q + 1, weights=weights)
        (g,) = torch.autograd.grad(out.sum(), q)
        assert (out == 0).all()
        assert g.isfinite().all()
        assert stats.sparsity.isnan().all()


def test_dropout_keeps_the_mean_and_leaves_the_statistics():
    q = torch.zeros(1, 1, 1, 4)
    k = torch.zeros(1, 1, 40000, 4)
    plain, dropped = (at.attend(q, k, torch.ones_like(k), dropout=r) for r in (0.0, 0.3))
    assert dropped.out[0, 0, 0, 0].item() == pytest.approx(1.0, abs=0.02)
    assert dropped.out[0, 0, 0, 0].item() != 1.0
    torch.testing.assert_close(plain.stats.entropy, dropped.stats.entropy)


BAD = {
    "tau": (lambda: at.Gumbel(0.0), "Gumbel: tau must be positive and finite, got 0.0"),
    "tau nan": (lambda: at.Gumbel(math.nan), "Gumbel: tau must be positive and finite, got nan"),
    "tau kind": (lambda: at.Gumbel("a"), "Gumbel: tau must be a number, got 'a'"),
    "rate kind": (lambda: at.Decay("a"), "Decay: rate must be a number or a tensor .* got 'a'"),
    "rate bool": (lambda: at.Decay(True), "Decay: rate must be a number or a tensor .* got True"),
    "rate zero": (lambda: at.Decay(0.0), r"Decay: rate must be in \(0, 1\], got 0.0"),
    "rate above one": (lambda: at.Decay(1.5), r"Decay: rate must be in \(0, 1\], got 1.5"),
    "rate nan": (lambda: at.Decay(math.nan), r"Decay: rate must be in \(0, 1\], got nan"),
    "feature": (lambda: at.Kernelised("cosh"), "Kernelised: feature must be .* got 'cosh'"),
    "inner": (lambda: at.L2(at.Softmax()), r"L2: of must be Linear\(\) or ReluSquared\(\)"),
    "sink": (
        lambda: at.attend(*Shape().tensors(), weights=at.Linear(), sink=torch.zeros(4)),
        "sink is supported by Softmax weights only, not by Linear",
    ),
    "scale": (
        lambda: at.attend(*Shape().tensors(), weights=at.Kernelised(), scale=2.0),
        "Kernelised weights have no logits and take no scale",
    ),
    "dropout": (
        lambda: at.attend(*Shape().tensors(), weights=at.Hard(), dropout=0.5),
        "dropout is not supported with one-hot weights",
    ),
    "generator": (
        lambda: at.Gumbel(generator=3),
        "Gumbel: generator must be a torch.Generator or None, got 3",
    ),
    "string": (
        lambda: at.attend(*Shape().tensors(), weights="softmax"),
        "weights must be a value of attentropy.core.weights, got 'softmax'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    make, message = BAD[name]
    with pytest.raises((ValueError, TypeError, NotImplementedError), match=message):
        make()
