import math

import numpy as np
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


def simplex_projection(z):
    """Sparsemax by sorting: the closed form of its authors."""
    ordered = np.sort(z)[::-1]
    sums = np.cumsum(ordered)
    k = np.arange(1, len(z) + 1)
    size = k[1 + k * ordered > sums].max()
    return np.maximum(z - (sums[size - 1] - 1) / size, 0)


def entmax15_by_sorting(z):
    """Entmax with alpha = 1.5 by sorting: t = mean - sqrt((1 - sum of squares) / k) of z / 2."""
    x = np.sort(z / 2)[::-1]
    for k in range(len(x), 0, -1):
        mean = x[:k].mean()
        rest = (1 - ((x[:k] - mean) ** 2).sum()) / k
        if rest >= 0 and mean - np.sqrt(rest) <= x[k - 1]:
            return np.maximum(z / 2 - mean + np.sqrt(rest), 0) ** 2
    raise AssertionError


ROWS = np.random.default_rng(3).normal(size=(50, 17)) * np.logspace(-1.5, 2, 50)[:, None]


@pytest.mark.parametrize(
    ("weights", "oracle"),
    [(at.Sparsemax(), simplex_projection), (at.Entmax(), entmax15_by_sorting)],
)
def test_sparse_weights_are_those_of_the_closed_forms(weights, oracle):
    wanted = np.array([oracle(row) for row in ROWS])
    got = weights.of_rows(torch.tensor(ROWS))
    np.testing.assert_allclose(got, wanted, atol=1e-14)
    assert (wanted == 0).any()
    assert ((got == 0).numpy() == (wanted == 0)).all()
    low = weights.of_rows(torch.tensor(ROWS, dtype=torch.float32))
    np.testing.assert_allclose(low, wanted, atol=2e-5)


@pytest.mark.parametrize("alpha", [1.05, 1.3, 1.5, 1.7, 2.0])
def test_entmax_sums_to_one_and_is_optimal(alpha):
    s = torch.tensor(ROWS)
    p = at.Entmax(alpha).of_rows(s)
    torch.testing.assert_close(p.sum(-1), torch.ones(len(s), dtype=s.dtype))
    # stationary: s_j - p_j^(alpha - 1) / (alpha - 1) is the same for every key that has weight
    level = s - p ** (alpha - 1) / (alpha - 1)
    used = level.where(p > 0, level.where(p > 0, -torch.inf).amax(-1, keepdim=True))
    torch.testing.assert_close(used, used[:, :1].expand_as(used), atol=1e-7, rtol=1e-9)


def test_entmax_near_one_is_softmax():
    s = torch.tensor(ROWS[:20])
    torch.testing.assert_close(at.Entmax(1 + 1e-6).of_rows(s), s.softmax(-1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("weights", [at.Entmax(), at.Entmax(1.8), at.Sparsemax(), at.Softpick()])
def test_gradients_of_weights_of_rows(weights):
    s = torch.tensor(ROWS[10:14, :7], requires_grad=True)
    hidden = torch.zeros(4, 7, dtype=torch.bool)
    hidden[0, 2] = hidden[1, 5:] = True

    def shown(x):
        return weights.of_rows(x.masked_fill(hidden, -torch.inf))

    assert torch.autograd.gradcheck(shown, s)
    assert torch.autograd.gradgradcheck(shown, s)


@pytest.mark.parametrize(
    ("weights", "wanted"),
    [
        (at.Entmax(), [0.0, 0.0, 0.4609109939489234, 0.1435684380802633, 0.0, 0.3955205679708133]),
        (at.Sparsemax(), [0.0, 0.0, 0.55, 0.0, 0.0, 0.45]),
        (
            at.Entmax(1.25),
            [0.020704146609840206, 3.507114883913529e-10, 0.41853490109315805,
             0.18330769811227762, 0.008577580793319923, 0.36887567304069274],
        ),
    ],
)  # fmt: skip
def test_sparse_weights_are_those_of_their_authors_package(weights, wanted):
    # entmax 1.3: entmax15, sparsemax and entmax_bisect(alpha=1.25, n_iter=80) of this row
    row = torch.tensor([0.3, -1.2, 2.0, 1.4, 0.0, 1.9], dtype=torch.float64)
    torch.testing.assert_close(
        weights.of_rows(row), torch.tensor(wanted, dtype=torch.float64), rtol=1e-6, atol=1e-15
    )


def test_softpick_is_the_published_formula():
    s = torch.tensor(ROWS[:25])
    plain = s.expm1()
    wanted = plain.relu() / plain.abs().sum(-1, keepdim=True)
    torch.testing.assert_close(at.Softpick(eps=0.0).of_rows(s), wanted)
    top = s.amax(-1, keepdim=True)
    shifted = (s - top).exp() - (-top).exp()
    published = shifted.relu() / (shifted.abs().sum(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(at.Softpick().of_rows(s), published)
    large = at.Softpick().of_rows(torch.tensor([800.0, 799.0, -800.0]))
    torch.testing.assert_close(large, torch.tensor([1.0, math.exp(-1), 0.0]) / (1 + math.exp(-1)))
    assert (at.Softpick().of_rows(torch.tensor([[-900.0, -2.0], [0.0, 0.0]])) == 0).all()


@pytest.mark.parametrize("weights", [at.Entmax(), at.Sparsemax(), at.Softpick()])
def test_rows_that_see_nothing_or_hold_nan(weights):
    rows = torch.tensor([[-torch.inf] * 3, [0.0, torch.nan, 1.0], [2.0, -torch.inf, 0.0]])
    found = weights.of_rows(rows)
    assert (found[0] == 0).all()
    assert found[1].isnan().any()
    assert found[2, 1] == 0


def test_sigmoid_and_its_bias():
    q, k, v = (torch.randn(1, 2, 5, 4, dtype=torch.float64) for _ in range(3))
    out, stats = at.attend(q, k, v, weights=at.Sigmoid(bias=-math.log(5)))
    wanted = 1 / (1 + 5 * (-(q @ k.mT) / 2).exp())
    torch.testing.assert_close(out, wanted @ v)
    torch.testing.assert_close(stats.mass, wanted.sum(-1))
    assert stats.entropy is None


def test_statistics_of_entmax_are_those_of_its_weights():
    q, k, v = (torch.randn(1, 2, 6, 4, dtype=torch.float64) * 3 for _ in range(3))
    p = np.array([[entmax15_by_sorting(row) for row in head] for head in (q @ k.mT / 2)[0].numpy()])
    safe = np.where(p > 0, p, 1.0)
    for kernel in ("streaming", "reference"):
        out, stats = at.attend(q, k, v, weights=at.Entmax(), kernel=kernel)
        np.testing.assert_allclose(out[0], p @ v[0].numpy(), atol=1e-13)
        np.testing.assert_allclose(stats.entropy[0], -(p * np.log(safe)).sum(-1), atol=1e-13)
        np.testing.assert_allclose(stats.collision[0], (p * p).sum(-1), atol=1e-13)
        assert stats.lse is None
        mass = at.key_mass(q, k, weights=at.Entmax(), kernel=kernel)
        np.testing.assert_allclose(mass[0], p.sum(1), atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: at.Entmax(1.0),
            r"Entmax: alpha must be in \(1, 2\]; alpha = 1 is Softmax\(\), got",
        ),
        (lambda: at.Entmax(2.5), r"Entmax: alpha must be in \(1, 2\]"),
        (lambda: at.Sigmoid(math.inf), "Sigmoid: bias must be finite, got inf"),
        (lambda: at.Softpick(-1.0), "Softpick: eps must be >= 0, got -1.0"),
    ],
)
def test_bad_arguments_of_new_weights(make, message):
    with pytest.raises(ValueError, match=message):
        make()
