"""Document 002: sparsity of attention for several activations."""

import math
from collections.abc import Callable

import numpy as np

from attentropy.lab.claims.registry import ClaimResult, claim, conditional, holds_if, refuted
from attentropy.lab.claims.tools import close, gap, generator
from attentropy.theory import sparsity
from attentropy.theory.entropy import entropy, log_collision, softmax
from attentropy.theory.entropy import sparsity as row_sparsity


def _population(f: Callable[..., np.ndarray], beta: float, gamma: float) -> float:
    """S of f(beta + gamma g) by integration over g."""
    g = np.linspace(-30, 30, 1200001)
    w = np.exp(-g * g / 2)
    value = np.abs(f(beta + gamma * g))
    mean, square = (w * value).sum() / w.sum(), (w * value**2).sum() / w.sum()
    return float(mean / np.sqrt(square))


def _relu2(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) ** 2


@claim(
    "002-1",
    "cond",
    "A causal attention matrix has full rank",
    "if no diagonal entry is 0 (always for softmax, det = product of the diagonal); numerically it "
    "can be singular",
)
def _() -> ClaimResult:
    s = np.where(np.tril(np.ones((64, 64), bool)), generator().normal(size=(64, 64)), -np.inf)
    a = softmax(s)
    log_det = np.linalg.slogdet(a[:12, :12])[1]
    relu = np.maximum(np.where(np.isneginf(s), 0, s), 0)
    return conditional(
        close(log_det, np.log(np.diag(a)[:12]).sum(), 1e-6) and np.diag(a).min() > 0,
        np.linalg.matrix_rank(relu) == 64,
        log_det_n12=log_det,
        smallest_singular_n64=np.linalg.svd(a, compute_uv=False)[-1],
        relu_rank=np.linalg.matrix_rank(relu),
    )


@claim(
    "002-2",
    "holds",
    "S = E|x|/sqrt(E x^2); smaller is sparser",
    "in [1/sqrt n, 1], scale-free, undefined at x = 0",
)
def _() -> ClaimResult:
    x = generator(1).normal(size=(500, 16)) ** 3
    s = sparsity.empirical(x)
    ends = sparsity.empirical(np.eye(16)[0]), sparsity.empirical(np.ones(16))
    return holds_if(
        s.min() >= 0.25
        and s.max() <= 1
        and close(ends, (0.25, 1))
        and close(s, sparsity.empirical(7 * x)),
        one_hot=ends[0],
        uniform=ends[1],
    )


@claim(
    "002-2b",
    "holds",
    "For probabilities S = 1/sqrt(n sum p^2) = exp((H_2 - log n)/2)",
    "at most exp((H - log n)/2)",
)
def _() -> ClaimResult:
    s = 2 * generator(2).normal(size=(200, 20))
    direct = sparsity.empirical(softmax(s))
    renyi = np.exp((-log_collision(s) - np.log(20)) / 2)
    bound = np.exp((entropy(s) - np.log(20)) / 2)
    return holds_if(
        gap(direct, renyi) < 1e-13
        and gap(direct, row_sparsity(s)) < 1e-13
        and (direct <= bound + 1e-13).all(),
        gap=gap(direct, renyi),
        least_slack=(bound - direct).min(),
    )


@claim(
    "002-3",
    "holds",
    "Entropy does not apply to attention that is not normalised, or even signed",
    "the sentence writes non-negative (非负的) for signed, just after saying that attention need "
    "not be non-negative; rows that are, as written, have an entropy once normalised",
)
def _() -> ClaimResult:
    a = np.abs(generator(3).normal(size=(50, 10)))
    p = a / a.sum(-1, keepdims=True)
    signed = generator(4).normal(size=(50, 10))
    raw, as_written, normalised = (
        -(x * np.log(x)).sum(-1) for x in (5 * a, p, signed / signed.sum(-1, keepdims=True))
    )
    outside = ((raw < 0) | (raw > np.log(10))).mean()
    return holds_if(
        outside > 0.9 and np.isnan(normalised).mean() > 0.9 and np.isfinite(as_written).all(),
        unnormalised_outside_0_log_n=outside,
        signed_rows_undefined=np.isnan(normalised).mean(),
        non_negative_rows_undefined=np.isnan(as_written).mean(),
    )


@claim(
    "002-4",
    "cond",
    "S is the ratio of expectations as n -> infinity",
    "law of large numbers; for exp it fails when gamma > sqrt(log n/2)",
)
def _() -> ClaimResult:
    g = generator(5).normal(size=(50, 20000))
    mild = np.log(sparsity.empirical(np.exp(g))).mean() - sparsity.log_exp(0.0, 1.0)
    wild = np.log(sparsity.empirical(np.exp(5 * g - 20))).mean() - sparsity.log_exp(0.0, 5.0)
    return conditional(
        abs(mild) < 0.02, abs(wild) < 1, log_error_gamma_1=mild, log_error_gamma_5=wild
    )


@claim(
    "002-5",
    "holds",
    "For isotropic Gaussian keys only beta = q.mu and gamma = sigma |q| matter",
    "also for any Gaussian with gamma^2 = q^T Sigma q",
)
def _() -> ClaimResult:
    rng = generator(6)
    q, mu = rng.normal(size=8), rng.normal(size=8)
    s = (mu + 0.5 * rng.normal(size=(400000, 8))) @ q
    return holds_if(
        abs(s.mean() - mu @ q) < 0.02 and abs(s.std() / (0.5 * np.linalg.norm(q)) - 1) < 0.01,
        beta=s.mean(),
        gamma=s.std(),
    )


@claim("002-6", "holds", "exp: S = e^(-gamma^2/2)", "whatever beta; take logs for gamma > 38")
def _() -> ClaimResult:
    values = [_population(np.exp, b, 1.5) for b in (-2.0, 3.0)]
    return holds_if(
        close(values, sparsity.exp(0.0, 1.5), 1e-9), measured=values[0], rule=sparsity.exp(0.0, 1.5)
    )


@claim(
    "002-6b",
    "cond",
    "exp becomes arbitrarily sparse as gamma grows",
    "for infinitely many keys; with n keys S >= 1/sqrt n, in three regimes",
)
def _() -> ClaimResult:
    g = generator(7).normal(size=(200, 10000))
    finite = np.log(sparsity.empirical(np.exp(3 * g - 20))).mean()
    far = np.log(sparsity.empirical(np.exp(60 * (g - g.max(-1, keepdims=True))))).mean()
    rule = sparsity.log_exp_finite(10000, 3.0)
    return conditional(
        sparsity.exp(0.0, 30.0) < 1e-100
        and -np.log(10000) / 2 <= finite
        and abs(finite - rule) < abs(finite + 4.5),
        far < -5,
        log_S_n1e4=finite,
        regime=rule,
        population=sparsity.log_exp(0.0, 3.0),
        floor=-np.log(10000) / 2,
        far=far,
    )


@claim(
    "002-7", "holds", "relu^2: the long formula with erf", "M2/sqrt(M4), stable forms in the tails"
)
def _() -> ClaimResult:
    points = [(-2.0, 1.0), (0.5, 2.0), (3.0, 1.0)]
    measured = [_population(_relu2, b, g) for b, g in points]
    rule = [sparsity.relu2(b, g) for b, g in points]
    return holds_if(close(measured, rule, 1e-7), gap=gap(measured, rule), at_minus_2=rule[0])


@claim(
    "002-8",
    "holds",
    "relu^2: only beta < 0 can approach S = 0",
    "S increases in beta/gamma: 0, 1/sqrt 6 at 0, 1 - 2/r^2; sparsity comes from small gamma",
)
def _() -> ClaimResult:
    r = np.linspace(-30, 30, 601)
    s = sparsity.relu2(r, 1.0)
    return holds_if(
        (np.diff(s) > 0).all()
        and close(s[300], 1 / math.sqrt(6))
        and s[0] < 1e-90
        and s[300:].min() > 0.4,
        at_0=s[300],
        at_minus_30=s[0],
    )


@claim(
    "002-8a",
    "holds",
    "A bias on the keys may help relu^2, which it cannot for exp",
    "it moves beta = q.mu: a bias against the query makes relu^2 sparse, and exp cancels it",
)
def _() -> ClaimResult:
    rng = generator(12)
    q, keys = rng.normal(size=8), rng.normal(size=(20000, 8))
    found = {}
    for size in (0.0, -1.5):
        s = (keys + size * q / np.linalg.norm(q)) @ q
        found[size] = sparsity.empirical(_relu2(s)), sparsity.empirical(np.exp(s - s.max()))
    gamma = np.linalg.norm(q)
    rule = [sparsity.relu2(size * gamma, gamma) for size in found]
    return holds_if(
        gap([pair[0] for pair in found.values()], rule) < 0.02
        and found[-1.5][0] < 0.6 * found[0.0][0]
        and close(found[-1.5][1], found[0.0][1]),
        relu2_without=found[0.0][0],
        relu2_with=found[-1.5][0],
        exp_without=found[0.0][1],
        exp_with=found[-1.5][1],
    )


@claim("002-9", "holds", "identity: S by Gaussian density and erf", "closed form confirmed")
def _() -> ClaimResult:
    measured = [_population(lambda x: x, b, 1.0) for b in (0.0, 0.7, 3.0)]
    rule = sparsity.identity([0.0, 0.7, 3.0], 1.0)
    return holds_if(close(measured, rule, 1e-7), gap=gap(measured, rule))


@claim("002-10", "holds", "identity: S is even in beta", "by symmetry")
def _() -> ClaimResult:
    b = np.linspace(0, 20, 50)
    error = gap(sparsity.identity(b, 1.3), sparsity.identity(-b, 1.3))
    return holds_if(error == 0, gap=error)


@claim(
    "002-11",
    "holds",
    "identity: S has a high floor",
    "sqrt(2/pi) = 0.7979 at beta = 0, flat: times (1 + r^4/12)",
)
def _() -> ClaimResult:
    r = np.linspace(0, 50, 2001)
    s = sparsity.identity(r, 1.0)
    quartic = (sparsity.identity(0.1, 1.0) / s[0] - 1) * 12 / 1e-4
    return holds_if(
        s.argmin() == 0 and close(s[0], math.sqrt(2 / math.pi)) and abs(quartic - 1) < 0.05,
        floor=s[0],
        quartic_coefficient=quartic / 12,
    )


@claim(
    "002-12",
    "holds",
    "Non-negative linear attention: S = 1/sqrt(1 + q^T Sigma q/(q.mu)^2)",
    "exact for samples with their own mean and 1/n covariance",
)
def _() -> ClaimResult:
    rng = generator(8)
    k, q = rng.gamma(1.0, size=(300, 6)), rng.gamma(1.0, size=6)
    rule = sparsity.linear(q, k.mean(0), np.cov(k.T, bias=True))
    return holds_if(
        close(sparsity.empirical(k @ q), rule, 1e-12), measured=sparsity.empirical(k @ q), rule=rule
    )


@claim(
    "002-13",
    "holds",
    "It can be arbitrarily sparse as the signal-to-noise ratio vanishes",
    "algebra",
)
def _() -> ClaimResult:
    s = [sparsity.linear_iid(1.0, mu, [1.0]) for mu in (1.0, 1e-3, 1e-9)]
    return holds_if(s[0] > s[1] > s[2] and s[2] < 1e-8, mu_1=s[0], mu_1e9=s[2])


@claim(
    "002-14",
    "holds",
    "Small S of a non-negative sequence: most elements nearly equal",
    "all near 0 with few large ones: P(a > t rms) <= S/t",
)
def _() -> ClaimResult:
    a = generator(9).gamma(0.02, size=200000)
    rms, s = np.sqrt((a * a).mean()), sparsity.empirical(a)
    worst = max((a > t * rms).mean() - s / t for t in (0.1, 0.3, 1.0))
    return holds_if(
        worst <= 0 and np.median(a) < 1e-6 * rms, S=s, median_over_rms=np.median(a) / rms
    )


@claim(
    "002-14b",
    "cond",
    "Linear attention expresses importance of absolute positions (a column), hardly relative ones",
    "a column has rank 1; attention to the previous token has rank n - 1, and d features leave "
    "sqrt(1 - d/(n - 1)) of it. With d >= n - 1 it can",
)
def _() -> ClaimResult:
    n, d = 64, 8
    column = np.zeros((n, n))
    column[:, 5] = 1
    previous = np.eye(n, k=-1)
    spectrum = {
        name: np.linalg.svd(a, compute_uv=False)
        for name, a in (("column", column), ("previous", previous))
    }

    def missed(name: str, features: int) -> float:
        s = spectrum[name]
        return float(np.sqrt((s[features:] ** 2).sum() / (s**2).sum()))

    return conditional(
        missed("column", 1) < 1e-12
        and close(missed("previous", d), math.sqrt(1 - d / (n - 1)))
        and missed("previous", n - 1) < 1e-12,
        missed("previous", d) < 0.5,
        column_missed_by_1_feature=missed("column", 1),
        previous_missed_by_8=missed("previous", d),
        previous_missed_by_63=missed("previous", n - 1),
    )


@claim(
    "002-15", "holds", "iid components: S = 1/sqrt(1 + (sigma |q|_2/(mu |q|_1))^2)", "for q >= 0"
)
def _() -> ClaimResult:
    q = np.array([1.0, 2.0, 0.5])
    general = sparsity.linear(q, 0.7 * np.ones(3), 0.36 * np.eye(3))
    return holds_if(close(general, sparsity.linear_iid(0.6, 0.7, q), 1e-13), S=general)


@claim(
    "002-16",
    "false",
    "|q|_2/|q|_1 has the maximum sqrt d",
    "it lies in [1/sqrt d, 1]; sqrt d is the maximum of the inverse",
)
def _() -> ClaimResult:
    d = 64
    rows = generator(10).gamma(0.05, size=(5000, d)) + 1e-12
    ratio = np.linalg.norm(rows, axis=1) / rows.sum(1)
    one, dense = 1.0, np.linalg.norm(np.ones(d)) / d
    return refuted(
        ratio.max() > 2,
        ratio.max() <= 1 and ratio.min() >= dense - 1e-12 and close(dense, 1 / 8),
        largest=max(ratio.max(), one),
        claimed=8.0,
        dense=dense,
    )


@claim(
    "002-17",
    "false",
    "Hence a larger d makes linear attention sparser",
    "S >= 1/sqrt(1 + (sigma/mu)^2) at every d, and a dense q gets less sparse with d",
)
def _() -> ClaimResult:
    s = [sparsity.linear_iid(math.sqrt(2), 1.0, np.ones(d)) for d in (1, 4, 16, 64)]
    floor = 1 / math.sqrt(3)
    random = min(
        sparsity.linear_iid(math.sqrt(2), 1.0, generator(k).gamma(0.1, size=64)) for k in range(200)
    )
    return refuted(
        s[-1] < s[0],
        (np.diff(s) > 0).all() and random >= floor,
        d_1=s[0],
        d_64=s[-1],
        floor=floor,
        least_random=random,
    )


@claim(
    "002-18",
    "holds",
    "Softmax attention is linear attention with infinitely many features",
    "Taylor features of e^(q.k)",
)
def _() -> ClaimResult:
    q, k = 0.5 * generator(11).normal(size=(2, 4))
    powers = [(q @ k) ** m / math.factorial(m) for m in range(25)]
    return holds_if(
        close(sum(powers), np.exp(q @ k), 1e-14), error=abs(sum(powers) - np.exp(q @ k))
    )


@claim(
    "002-19",
    "holds",
    "Decay: S = sqrt((1-lam^n)(1+lam)/(n (1-lam)(1+lam^n)))",
    "stable with tanh; 1 at lam = 1, 1/sqrt n at 0",
)
def _() -> ClaimResult:
    measured = sparsity.empirical(0.93 ** np.arange(80))
    return holds_if(close(measured, sparsity.decay(0.93, 80), 1e-12), measured=measured)


@claim(
    "002-20",
    "holds",
    "S < sqrt((1+lam)/(n (1-lam)(1+lam^n)))",
    "strict inside (0, 1), equal at 0, says nothing near 1",
)
def _() -> ClaimResult:
    lam = np.linspace(0.01, 0.99, 99)
    slack = sparsity.decay_bound(lam, 30) - sparsity.decay(lam, 30)
    return holds_if(
        (slack >= -1e-15).all() and (slack[60:] > 0).all(), least=slack.min(), at_099=slack[-1]
    )


@claim(
    "002-21",
    "cond",
    "lam < 1 makes S tend to 0 with n",
    "at fixed lam, because n grows past (1+lam)/(1-lam) keys; with lam = 1 - c/n it stays",
)
def _() -> ClaimResult:
    fixed = sparsity.decay(0.9, 10**10)
    moving = sparsity.decay(1 - 3e-8, 10**8)
    keys = 10**6 * sparsity.decay(0.9, 10**6) ** 2
    return conditional(
        fixed < 1e-4 and close(keys, sparsity.decay_effective_keys(0.9), 1e-6),
        moving < 0.1,
        fixed=fixed,
        moving=moving,
        effective_keys=keys,
    )


@claim(
    "002-22",
    "cond",
    "Quadratic attention can be arbitrarily sparse, linear hardly",
    "exp yes (floor 1/sqrt n), relu^2 only for beta/gamma -> -inf, non-negative "
    "linear needs sigma/mu",
)
def _() -> ClaimResult:
    relu = sparsity.relu2(-10.0, 1.0), sparsity.relu2(1.0, 1.0)
    return conditional(
        sparsity.exp(0.0, 10.0) < 1e-20 and relu[0] < 1e-5 and sparsity.identity(0.0, 1.0) > 0.79,
        relu[1] < 0.1 or sparsity.linear_iid(1e6, 1.0, [1.0]) > 0.1,
        exp=sparsity.exp(0.0, 10.0),
        relu2_minus_10=relu[0],
        relu2_plus_1=relu[1],
        linear_wide=sparsity.linear_iid(1e6, 1.0, [1.0]),
    )
