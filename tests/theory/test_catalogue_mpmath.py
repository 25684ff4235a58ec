"""The catalogue against forty digits, at points of our own that stress every branch."""

import math

import numpy as np
import pytest

from attentropy.theory import CATALOGUE

mp = pytest.importorskip("mpmath").mp
mpf = mp.mpf


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(60):
        yield


def agree(got, wanted, tol):
    got, wanted = np.atleast_1d(got), np.atleast_1d(np.array(wanted, dtype=object))
    for a, b in zip(got.ravel(), wanted.ravel(), strict=True):
        if abs(b) < mpf("1e-300"):
            assert abs(a) <= 1e-290
        else:
            assert abs(mpf(float(a)) - b) <= tol * abs(b), (a, mp.nstr(b, 20))


def _relu2(beta, gamma):
    with mp.workdps(60 + int(0.5 * min((beta / gamma) ** 2, 4000))):
        b, g = mpf(beta), mpf(gamma)
        cdf, pdf = mp.erfc(-b / g / mp.sqrt(2)) / 2, mp.npdf(b / g)
        second = (b * b + g * g) * cdf + b * g * pdf
        fourth = (b**4 + 6 * b**2 * g**2 + 3 * g**4) * cdf + (b**3 * g + 5 * b * g**3) * pdf
        return second / mp.sqrt(fourth)


RATIOS = [-60, -37.5, -12, -4, -2.2, -1.51, -1.49, -0.7, 0.3, 1.7, 1.99, 2.01, 3.3, 8, 40, 999, 1e6]


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("gamma", [1e-6, 0.37, 1e6])
def test_relu2_in_every_branch(ratio, gamma):
    beta = ratio * gamma
    wanted = _relu2(beta, gamma)
    if ratio > -37:
        agree(CATALOGUE["S_relu2"](beta=beta, gamma=gamma), wanted, 1e-11)
    agree(CATALOGUE["log_S_relu2"](beta=beta, gamma=gamma), mp.log(wanted), 1e-12)


@pytest.mark.parametrize("ratio", [0, 1e-9, 0.02, 0.8, 2.5, 7, 9.5, 600, 1e9])
@pytest.mark.parametrize("sign", [-1, 1])
def test_identity(ratio, sign):
    r = mpf(ratio * 0.3) / mpf(0.3)
    wanted = (mp.sqrt(2 / mp.pi) * mp.exp(-r * r / 2) + r * mp.erf(r / mp.sqrt(2))) / mp.hypot(1, r)
    agree(CATALOGUE["S_identity"](beta=sign * ratio * 0.3, gamma=0.3), wanted, 1e-13)


@pytest.mark.parametrize("gamma", [0, 1e-6, 0.123, 6.7, 31.4, 37.7])
def test_exp(gamma):
    agree(CATALOGUE["S_exp"](beta=-1000.0, gamma=gamma), mp.exp(-(mpf(gamma) ** 2) / 2), 1e-12)


@pytest.mark.parametrize("lam", [1e-300, 1e-9, 0.3, 0.77, 0.9999, 1 - 1e-9, 1 - 2**-50])
@pytest.mark.parametrize("n", [1, 2, 37, 10**6, 10**12])
def test_decay(lam, n):
    power = mpf(lam) ** n
    exact = mp.sqrt((1 - power) * (1 + mpf(lam)) / (n * (1 - mpf(lam)) * (1 + power)))
    agree(CATALOGUE["S_decay"](lam=lam, n=n), exact, 1e-12)


@pytest.mark.parametrize("a", [1e-12, 1e-5, 0.03, 0.99, 1.01, 29, 31, 300, 715])
def test_uniform_noise(a):
    agree(CATALOGUE["mgf_uniform"](a=a), mp.sinh(mpf(a)) / mpf(a), 1e-13)
    rho = mpf(a) * mp.coth(mpf(a)) - 1
    agree(CATALOGUE["noise_relative_variance"](kind="uniform", scale=a), rho, 1e-12)


@pytest.mark.parametrize("sigma", [1e-9, 0.01, 0.999, 1.001, 5.3, 17.3, 26.1])
def test_gaussian_noise(sigma):
    agree(CATALOGUE["mgf_gaussian"](sigma=sigma), mp.exp(mpf(sigma) ** 2 / 2), 1e-13)
    rho = mp.expm1(mpf(sigma) ** 2)
    agree(CATALOGUE["noise_relative_variance"](kind="gaussian", scale=sigma), rho, 1e-12)


@pytest.mark.parametrize("b", [1e-9, 0.2, 0.4999999, 0.77, 0.9999999])
def test_laplace_noise(b):
    agree(CATALOGUE["mgf_laplace"](b=b), 1 / (1 - mpf(b) ** 2), 1e-12)
    if b < 0.5:
        rho = (1 - mpf(b) ** 2) ** 2 / (1 - 4 * mpf(b) ** 2) - 1
        agree(CATALOGUE["noise_relative_variance"](kind="laplace", scale=b), rho, 1e-11)


ROWS = [
    [0.0, -1e-9, 3e-9],
    [5.5, 5.5, 5.5, -math.inf],
    [1e30, -1e30, 1e30],
    [-1e30, -math.inf],
    [33.0, 0.0, -2.0, 1.0],
    [80.0, 1.0, 2.0],
    [-700.0, -745.0, -900.0],
    [0.25 * k for k in range(-20, 20)],
]


@pytest.mark.parametrize("scores", ROWS)
def test_rows(scores):
    s = [mpf(v) for v in scores if v > -math.inf]
    top = max(s)
    z = sum(mp.exp(v - top) for v in s)
    p = [mp.exp(v - top) / z for v in s]
    entropy = mp.log(z) - sum(w * (v - top) for w, v in zip(p, s, strict=True))
    agree(CATALOGUE["softmax_entropy"](scores=scores), entropy, 1e-11)
    agree(CATALOGUE["logsumexp"](scores=scores), top + mp.log(z), 1e-14)
    collision = sum(w * w for w in p)
    agree(CATALOGUE["log_sum_p2"](scores=scores), mp.log(collision), 1e-11)
    wanted = 1 / mp.sqrt(len(scores) * collision)
    agree(CATALOGUE["sparsity_S"](scores=scores, n=len(scores)), wanted, 1e-12)
    mean = sum(w * v for w, v in zip(p, s, strict=True))
    variance = sum(w * (v - mean) ** 2 for w, v in zip(p, s, strict=True))
    if abs(top) < 1e10:
        agree(CATALOGUE["dH_dlambda"](scores=scores, lam=1.0), -variance, 1e-12)


@pytest.mark.parametrize("cut", [0, 1, 3, 7])
def test_merging_keeps_relative_accuracy_near_one_hot(cut):
    scores, values = [80.0, 1.0, 2.0, -5.0, 30.0, 3.0, 0.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    blocks, parts = [scores[:cut], [], scores[cut:]], [values[:cut], [], values[cut:]]
    got = CATALOGUE["merge_states"](blocks=blocks, values=parts)
    d = [mpf(v) - 80 for v in scores]
    z = sum(mp.exp(v) for v in d)
    t = sum(v * mp.exp(v) for v in d)
    o = sum(w * mp.exp(v) for w, v in zip(values, d, strict=True)) / z
    q = sum(mp.exp(2 * v) for v in d)
    agree(got, [mpf(80), z, t, q, o, 80 + mp.log(z), mp.log(z) - t / z], 1e-12)


def _worst(r):
    m = mpf(r) / (1 - mp.exp(-mpf(r)))
    return m - 1 - mp.log(m)


@pytest.mark.parametrize("r", [1e-7, 1e-3, 0.3, 0.97, 1.99, 2.01, 7.7, 120.0, 1e6])
def test_worst_deficit_and_its_inverse(r):
    agree(CATALOGUE["worst_entropy_deficit_range"](range=r), _worst(r), 1e-13)
    tau = 2 / r
    agree(CATALOGUE["worst_entropy_deficit"](tau=tau), _worst(2 / mpf(tau)), 1e-13)
    r_exact = mpf(r)
    uniform = mp.log(r_exact) - 1 + r_exact / mp.expm1(r_exact) - mp.log(1 - mp.exp(-r_exact))
    agree(CATALOGUE["uniform_score_deficit"](range=r), uniform, 1e-12)


@pytest.mark.parametrize(("n", "entropy"), [(2, 0.3), (7, 1.9), (10**6, 13.8), (10**12, 0.0)])
def test_required_range_solves_its_equation(n, entropy):
    got = CATALOGUE["required_range"](n=n, H=entropy)
    agree(_worst(got), mp.log(n) - mpf(entropy), 1e-10)


@pytest.mark.parametrize("n", [1, 2, 11, 300, 10**9, 10**11])
@pytest.mark.parametrize("tau", [3.0, 1.0, 0.2, 0.06, 0.01])
def test_minimal_entropy_and_its_split(n, tau):
    r = 2 / mpf(tau)

    def level(k):
        q = (n - k) * mp.exp(-r) / k
        return mp.log(k) + mp.log1p(q) + r * q / (1 + q)

    m = r / (1 - mp.exp(-r))
    best = int(n * (m - 1) / mp.expm1(r))
    k = min((k for k in range(best - 2, best + 4) if 1 <= k <= n), key=level)
    agree(CATALOGUE["min_entropy_bounded"](n=n, tau=tau), [level(k), k], 1e-11)


@pytest.mark.parametrize("d", [1, 2, 3, 64, 4096])
@pytest.mark.parametrize("lam", [1e-6, 0.1, 8.0, 333.0, 2e4])
def test_sphere(d, lam):
    x = mpf(lam)
    first = mp.hyp0f1(mpf(d) / 2, x * x / 4)
    slope = x * x / d * mp.hyp0f1(mpf(d) / 2 + 1, x * x / 4) / first
    agree(CATALOGUE["sphere_score_deficit"](d=d, lam=lam), slope - mp.log(first), 1e-11)


@pytest.mark.parametrize("m", [1e-12, 1e-4, 0.1, 0.499, 0.501, 0.97, 1 - 1e-12])
def test_frozen(m):
    agree(CATALOGUE["frozen_entropy"](m=m), mp.digamma(1) - mp.digamma(1 - mpf(m)), 1e-12)


@pytest.mark.parametrize("m", [0, 1e-12, 1e-4, 0.1, 0.499, 0.501, 0.97, 1 - 1e-9])
def test_frozen_varentropy(m):
    agree(CATALOGUE["frozen_varentropy"](m=m), m * mp.psi(1, 1 - mpf(m)), 1e-12)
    if m:
        x = float(mp.sqrt(2 * mp.log(1000)) / mpf(m))
        wanted = mp.diff(lambda y: -y * mp.digamma(1 - mp.sqrt(2 * mp.log(1000)) / y), mpf(x))
        slope = x * (wanted + mp.digamma(1 - mp.sqrt(2 * mp.log(1000)) / mpf(x))) / mpf(x)
        agree(CATALOGUE["rem_varentropy_limit"](n=1000, x=x), -slope, 1e-6 if m > 0.9 else 1e-11)


@pytest.mark.parametrize("x", [0, 1e-5, 0.4, 0.999, 1.0, 3.7])
def test_the_varentropy_below_freezing(x):
    agree(CATALOGUE["rem_varentropy_limit"](n=1000, x=x), mpf(x) ** 2, 1e-15)


ROWS = [[0, 0, 0], [1, 2, 3], [1e4, 1e4 - 1, 1e4 - 3], [0, -30, -31], [0, -500, -600], [2, 2, -40]]


@pytest.mark.parametrize("scores", ROWS)
def test_varentropy_of_a_row(scores):
    e = [mp.exp(mpf(s) - max(scores)) for s in scores]
    p = [x / mp.fsum(e) for x in e]
    mean = mp.fsum(x * mp.log(x) for x in p)
    y = [mp.log(x) - mean for x in p]
    spread = mp.fsum(x * z * z for x, z in zip(p, y, strict=True))
    agree(CATALOGUE["varentropy"](scores=scores), spread, 1e-12)
    slopes = [x * (z * z + 2 * z - spread) for x, z in zip(p, y, strict=True)]
    for got, wanted in zip(CATALOGUE["varentropy_grad"](scores=scores), slopes, strict=True):
        assert abs(mpf(got) - wanted) <= mpf("1e-12") * (abs(wanted) + mpf("1e-4") * spread)


@pytest.mark.parametrize("x", [1e-6, 0.03, 0.99, 1.0, 2.5, 30.0])
def test_varentropy_of_two_gaussian_scores(x):
    """V = d^2 / (4 cosh^2(d/2)) with d = sqrt(2) x g the gap of the two."""
    with mp.workdps(25):
        reach = min(12, 100 / x)

        def part(g):
            d = mp.sqrt(2) * x * g
            return mp.npdf(g) * d * d / (4 * mp.cosh(d / 2) ** 2)

        wanted = 2 * mp.quad(part, [reach * k / 8 for k in range(9)])
    agree(CATALOGUE["gaussian_expected_varentropy"](n=2, x=x), wanted, 1e-11)


@pytest.mark.parametrize("lam", [1e-30, 1e-5, 0.5, 0.999, 1 - 1e-12])
def test_geometric(lam):
    x = mpf(lam)
    wanted = -mp.log(1 - x) - x * mp.log(x) / (1 - x)
    agree(CATALOGUE["geometric_entropy"](lam=lam), wanted, 1e-12)


@pytest.mark.parametrize("n", [2, 3, 77, 10**5, 10**9, 10**12])
def test_expected_maximum(n):
    with mp.workdps(30):
        total = mp.quad(
            lambda t: t * n * mp.npdf(t) * mp.ncdf(t) ** (n - 1), [-12, -3, 0, 3, 5, 7, 9, 14]
        )
    agree(CATALOGUE["expected_max_normal"](n=n), total, 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "x"), [(3, 2.0), (10**8, 1.01)])
def test_gaussian_rows_against_plain_quadrature(n, x):
    """E log Z = integral of exp(-e^u) - phi(e^u)^n, from scratch."""
    with mp.workdps(22):
        h = mpf(1) / 4 / max(1, int(x + 1))
        grid = [h * k for k in range(int(-10 / h), int(12 / h))]
        density = [h * mp.npdf(g) for g in grid]

        def missing(u):
            parts = zip(grid, density, strict=True)
            return sum(w * -mp.expm1(-mp.exp(u + x * g)) for g, w in parts)

        low = -int(26 + math.log(n) + x * x / 2)
        total = mpf(0)
        for u in mp.arange(low, 18, 0.25):
            total += (mp.exp(-mp.exp(u)) - mp.exp(n * mp.log1p(-missing(u)))) / 4
    agree(CATALOGUE["gaussian_expected_logZ"](n=n, x=x), total, 1e-9)
