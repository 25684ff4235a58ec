"""Document 000, first part: noise on the scores and how the output reacts."""

from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np

from attentropy.lab.claims.registry import (
    ClaimResult,
    approximate,
    claim,
    conditional,
    holds_if,
    refuted,
)
from attentropy.lab.claims.tools import attend, close, expectation, gap, generator
from attentropy.theory import bounds, noise
from attentropy.theory.entropy import softmax


def _row(n: int, sharpness: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = generator(seed)
    return sharpness * rng.normal(size=n), rng.normal(size=n)


def _rms(sharpness: float, n: int = 1000, trials: int = 2000) -> tuple[float, float, float]:
    """Measured and predicted output error under N(0,1) noise, and the effective keys."""
    s, v = _row(n, sharpness)
    p = softmax(s)
    outputs = noise.simulate(p, v, generator(1).normal(size=(trials, n)))
    error = float(np.sqrt(np.mean((outputs - p @ v) ** 2)))
    predicted = noise.predict(p, v, noise.relative_variance("gaussian", 1.0))
    return error, float(np.hypot(predicted.std, predicted.bias)), float(1 / (p * p).sum())


@claim("000-B.1", "holds", "The output is the e^s-weighted mean of the values", "definition")
def _() -> ClaimResult:
    s, v = _row(20)
    return holds_if(
        gap(attend(s, v), (np.exp(s) * v).sum() / np.exp(s).sum()) < 1e-14, output=attend(s, v)
    )


@claim(
    "000-B.2",
    "cond",
    "Independent noise on the scores hardly changes the output",
    "std = sqrt(rho sum p^2 (v-o)^2): needs many effective keys and a finite Var(e^eps); "
    "peaked rows are not robust",
)
def _() -> ClaimResult:
    flat, flat_rule, keys = _rms(0.0)
    peaked, _, few = _rms(8.0)
    return conditional(
        flat < 0.1 and abs(flat / flat_rule - 1) < 0.05,
        peaked < 0.1,
        error_flat=flat,
        predicted_flat=flat_rule,
        keys_flat=keys,
        error_peaked=peaked,
        keys_peaked=few,
    )


@claim("000-(1)", "holds", "Attention weights are softmax(s) and average the values", "definition")
def _() -> ClaimResult:
    p = softmax(_row(50)[0])
    return holds_if(p.min() >= 0 and close(p.sum(), 1, 1e-14), total=p.sum(), least=p.min())


@claim(
    "000-(2)",
    "false",
    "The output equals n times mean(e^s v)/mean(e^s)",
    "no factor n: the two means share it, and it cancels",
)
def _() -> ClaimResult:
    s, v = _row(10)
    o = attend(s, v)
    ratio = np.mean(np.exp(s) * v) / np.mean(np.exp(s))
    return refuted(
        close(10 * ratio, o), close(ratio, o, 1e-12), output=o, claimed=10 * ratio, corrected=ratio
    )


@claim(
    "000-(3)–(5)",
    "holds",
    "Noisy weights factorise into e^s e^eps and n cancels in the ratio",
    "the mean of the noise is irrelevant too: a common shift cancels exactly",
)
def _() -> ClaimResult:
    s, v = _row(40)
    eps = generator(2).normal(size=40)
    direct = attend(s + eps, v)
    product = np.mean(np.exp(s) * np.exp(eps) * v) / np.mean(np.exp(s) * np.exp(eps))
    shifted = attend(s + eps + 5, v)
    return holds_if(gap([product, shifted], direct) < 1e-13, gap=gap([product, shifted], direct))


@claim(
    "000-(6),(7)",
    "approx",
    "mean(e^s e^eps v) is about mean(e^s v) E e^eps",
    "relative fluctuation sqrt(rho sum w^2)/|sum w|, w = e^s v",
)
def _() -> ClaimResult:
    s, v = _row(4000, 0.5)
    w = np.exp(s) * np.abs(v)
    draws = np.exp(generator(3).normal(size=(1000, 4000))) @ w / (w.sum() * np.exp(0.5)) - 1
    rule = np.sqrt((np.e - 1) * (w * w).sum()) / w.sum()
    return approximate(draws.std(), 0.1, sharper=abs(draws.std() / rule - 1) < 0.1, predicted=rule)


@claim(
    "000-(8)",
    "cond",
    "Sample means tend to the product of expectations",
    "law of large numbers: needs a finite E e^eps",
)
def _() -> ClaimResult:
    rng = generator(4)
    fine = abs(np.exp(rng.laplace(0, 0.3, 10**6)).mean() / noise.mgf_laplace(0.3) - 1)
    heavy = [np.exp(rng.laplace(0, 2.0, 10**k)).mean() for k in (2, 4, 6)]
    return conditional(
        fine < 0.01,
        heavy[2] < 10 * heavy[0],
        error_b03=fine,
        mean_b2_1e2=heavy[0],
        mean_b2_1e6=heavy[2],
    )


@lru_cache
def _bias(n: int, trials: int = 8000) -> tuple[float, float, float, float]:
    """Bias of the noisy output with its standard error, prediction, and its spread."""
    s, v = np.zeros(n), np.where(np.arange(n) < n // 4, 3.0, 0.0) + np.linspace(-1, 1, n)
    s = 0.5 * v
    p = softmax(s)
    eps = 0.5 * generator(5).normal(size=(trials, n))
    weights = np.exp(eps) / np.exp(0.125) - 1
    linear = weights @ (p * (v - p @ v))  # mean 0: a control variate
    outputs = noise.simulate(p, v, eps) - p @ v
    rest = outputs - linear
    rule = noise.predict(p, v, np.expm1(0.25)).bias
    return (
        float(rest.mean()),
        float(rest.std() / np.sqrt(trials)),
        float(rule),
        float(outputs.std()),
    )


@claim(
    "000-(9)",
    "approx",
    "The noise cancels, so the noisy output is about the clean one",
    "bias -rho sum p^2 (v-o) = O(1/n_eff), standard deviation O(1/sqrt n_eff)",
)
def _() -> ClaimResult:
    bias, error, rule, std = _bias(256)
    return approximate(
        std, 0.2, sharper=abs(bias - rule) < 4 * error + 0.1 * abs(rule), bias=bias, predicted=rule
    )


@claim(
    "000-(10)",
    "cond",
    "The mean of the noisy output is the clean one up to O(1/sqrt n)",
    "true but not sharp: the bias is O(1/n) when Var(e^eps) is finite; 1/sqrt n is the spread",
)
def _() -> ClaimResult:
    small, large = _bias(32), _bias(512)
    ratio = small[0] / large[0]
    return conditional(
        12 < ratio < 22 and 3 < small[3] / large[3] < 5,
        not np.isinf(noise.relative_variance("laplace", 0.6)),
        bias_ratio_n_times_16=ratio,
        std_ratio_n_times_16=small[3] / large[3],
        rho_laplace_06=noise.relative_variance("laplace", 0.6),
    )


@claim(
    "000-(11)–(13)",
    "holds",
    "Numerator and denominator have means c sum e^s v and c sum e^s with c = E e^eps",
    "the common factor c cancels",
)
def _() -> ClaimResult:
    s, v = _row(30)
    e = np.exp(generator(6).normal(size=(200000, 30)))
    top, bottom = (e * np.exp(s) * v).sum(1), (e * np.exp(s)).sum(1)
    c = noise.mgf_gaussian(1.0)
    z1 = (top.mean() - c * (np.exp(s) * v).sum()) / (top.std() / np.sqrt(200000))
    z2 = (bottom.mean() - c * np.exp(s).sum()) / (bottom.std() / np.sqrt(200000))
    return holds_if(abs(z1) < 4 and abs(z2) < 4, z_numerator=z1, z_denominator=z2)


@claim(
    "000-(14),(15)",
    "holds",
    "First-order expansion of X/Y about the means",
    "true, but its mean correction is 0, so it cannot give the second-order formula",
)
def _() -> ClaimResult:
    def error(h: float) -> float:
        linear = 2 / 4 + h / 4 - 2 * (2 * h) / 16
        return abs((2 + h) / (4 + 2 * h) - linear) + abs((2 + h) / (4 - h) - (0.5 + h / 4 + h / 8))

    return holds_if(3.5 < error(1e-2) / error(5e-3) < 4.5, order=np.log2(error(1e-2) / error(5e-3)))


@claim(
    "000-(16)",
    "false",
    "E[X/Y] is about EX/EY + (Cov EX - Var(Y) EX)/EY^3",
    "E[X/Y] is about EX/EY - Cov/EY^2 + Var(Y) EX/EY^3: both signs were reversed",
)
def _() -> ClaimResult:
    rng = generator(7)
    y = 4 + 0.4 * rng.normal(size=2_000_000)
    x = 2 + 0.9 * (y - 4) + 0.2 * rng.normal(size=y.size)
    cov, var = 0.9 * 0.16, 0.16
    truth = np.mean(x / y - 0.5 - (x - 2) / 4 + 2 * (y - 4) / 16)  # the mean-0 part removed
    right = noise.ratio_mean(2.0, 4.0, cov, var) - 0.5
    wrong = (cov * 2 - var * 2) / 64
    return refuted(
        abs(wrong / truth - 1) < 0.2,
        abs(right / truth - 1) < 0.1,
        measured=truth,
        claimed=wrong,
        corrected=right,
    )


@claim(
    "000-(17)",
    "cond",
    "The variance of the noisy sum is Var(e^eps) sum e^(2s), which is O(n)",
    "the equality always holds, O(n) only for bounded scores; relative variance rho/n_eff",
)
def _() -> ClaimResult:
    s, _ = _row(50)
    sums = np.exp(generator(8).normal(size=(200000, 50)) * 0.5) @ np.exp(s)
    rule = np.exp(0.25) * np.expm1(0.25) * np.exp(2 * s).sum()
    drawn = np.exp(2 * generator(12).uniform(-1, 1, size=100000))
    bounded, growing = (
        x.sum() / x[: x.size // 10].sum() for x in (drawn, np.arange(1, 1001.0) ** 2)
    )
    return conditional(
        abs(sums.var() / rule - 1) < 0.05 and abs(bounded - 10) < 0.2,
        growing < 20,
        measured_over_rule=sums.var() / rule,
        growth_bounded=bounded,
        growth_unbounded=growing,
    )


@claim(
    "000-(17b)",
    "cond",
    "Hence the error is O(1/sqrt n)",
    "that is the spread of one noisy output; the error of its mean is O(1/n)",
)
def _() -> ClaimResult:
    small, large = _bias(32), _bias(512)
    return conditional(
        abs(small[3] / large[3] - 4) < 0.5,
        abs(small[0] / large[0] - 4) < 2,
        std_ratio=small[3] / large[3],
        bias_ratio=small[0] / large[0],
    )


@claim(
    "000-(18)",
    "holds",
    "The average of e^s e^eps converges to the constant E e^s E e^eps",
    "by the law of large numbers; the document names the central limit theorem, which is about "
    "sqrt(n) times the rest, and that does not become constant",
)
def _() -> ClaimResult:
    rng = generator(9)
    means = {n: np.exp(rng.normal(size=(2000, n)) / 2 + rng.normal(size=(2000, n)) / 2).mean(1)
             for n in (100, 2500)}  # fmt: skip
    wanted = np.exp(0.125) ** 2
    return holds_if(
        close([m.mean() for m in means.values()], wanted, 0.01)
        and abs(means[100].std() / means[2500].std() / 5 - 1) < 0.1,
        average_n2500=means[2500].mean(),
        product_of_means=wanted,
        std_n100=means[100].std(),
        std_n2500=means[2500].std(),
        root_n_times_std_n2500=50 * means[2500].std(),
    )


@claim(
    "000-(19),(20)",
    "holds",
    "The output is Lipschitz in the scores",
    "one global constant serves all scores: diam(V)/2 per unit of ||eps||_inf",
)
def _() -> ClaimResult:
    worst = _worst_output_ratio(lambda eps, v: np.ptp(v) / 2 * np.abs(eps).max())
    return holds_if(worst <= 1 + 1e-12, worst_ratio=worst)


def _worst_output_ratio(bound: Callable[..., float], trials: int = 1500) -> float:
    rng = generator(10)
    worst = 0.0
    for _ in range(trials):
        n = int(rng.integers(2, 8))
        s, v = rng.normal(size=n) * rng.choice([0.1, 1, 5]), rng.normal(size=n)
        eps = rng.choice([-1.0, 1.0], n) * rng.choice([1e-3, 0.3, 2.0])
        worst = max(worst, float(abs(attend(s + eps, v) - attend(s, v))) / bound(eps, v))
    return worst


@claim(
    "000-(21)",
    "holds",
    "The output moves by at most max|v| times the l1 change of the weights",
    "sharper: half the diameter of the values, because the weight changes sum to 0",
)
def _() -> ClaimResult:
    rng = generator(11)
    ratios = []
    for _ in range(3000):
        v = rng.normal(size=(5, 3))
        change = softmax(rng.normal(size=5)) - softmax(rng.normal(size=5))
        diameter = np.linalg.norm(v[:, None] - v, axis=-1).max()
        moved, l1 = np.linalg.norm(change @ v), np.abs(change).sum()
        ratios.append((moved / (np.linalg.norm(v, axis=1).max() * l1), moved / (diameter * l1 / 2)))
    loose, sharp = np.max(ratios, axis=0)
    return holds_if(loose <= 1 and sharp <= 1 + 1e-12, ratio_claim=loose, ratio_sharp=sharp)


@claim(
    "000-(22)",
    "holds",
    "||softmax(s+eps) - softmax(s)||_1 <= ||eps||_inf",
    "1 is the best constant; sharp at finite size: 2 tanh(||eps||_inf/2)",
)
def _() -> ClaimResult:
    rng = generator(12)
    worst = 0.0
    for _ in range(4000):
        s, eps = 3 * rng.normal(size=6), rng.uniform(-2, 2, 6)
        moved = np.abs(softmax(s + eps) - softmax(s)).sum()
        worst = max(worst, moved / bounds.softmax_l1_modulus(np.abs(eps).max()))
    extremal = np.abs(softmax([0.7, -0.7]) - softmax([-0.7, 0.7])).sum()
    equality = extremal / bounds.softmax_l1_modulus(1.4)
    small = bounds.softmax_l1_modulus(1e-4) / 1e-4
    return holds_if(
        worst <= 1 and small <= 1 and extremal <= 1.4 + 1e-12,
        worst_ratio_to_sharp=worst,
        small_step_constant=small,
        extremal_pair=equality,
    )


@claim(
    "000-(23)",
    "holds",
    "The output moves by at most max|v| times ||eps||_inf",
    "sharp: diam(V) tanh(range(eps)/4)",
)
def _() -> ClaimResult:
    sharp = _worst_output_ratio(
        lambda eps, v: bounds.output_perturbation(np.ptp(v), max(np.ptp(eps), 1e-12))
    )
    loose = _worst_output_ratio(lambda eps, v: np.abs(v).max() * np.abs(eps).max())
    tight = abs(attend([1.0, -1.0], [1.0, -1.0]) - attend([-1.0, 1.0], [1.0, -1.0]))
    reached = tight / bounds.output_perturbation(2.0, 4.0)
    return holds_if(
        loose <= 1 + 1e-12 and sharp <= 1 + 1e-6 and close(reached, 1),
        ratio_claim=loose,
        ratio_sharp=sharp,
        reached=reached,
    )


def _gauss(x: np.ndarray) -> np.ndarray:
    return np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


@claim("000-(24)", "holds", "Gaussian noise has E e^eps = e^(sigma^2/2)", "rho = e^(sigma^2) - 1")
def _() -> ClaimResult:
    mean = expectation(_gauss, lambda x: np.exp(1.5 * x))
    second = expectation(_gauss, lambda x: np.exp(3.0 * x))
    rho = second / mean**2 - 1
    ok = close(mean, noise.mgf_gaussian(1.5), 1e-10)
    return holds_if(
        ok and close(rho, noise.relative_variance("gaussian", 1.5), 1e-10), mgf=mean, rho=rho
    )


@claim(
    "000-(25)", "approx", "Gaussian noise leaves the output about unchanged", "error as in 000-B.2"
)
def _() -> ClaimResult:
    measured, rule, keys = _rms(1.0)
    return approximate(
        measured, 0.2, sharper=abs(measured / rule - 1) < 0.15, predicted=rule, effective_keys=keys
    )


@claim(
    "000-(26)", "holds", "Uniform noise on [-a, a] has E e^eps = sinh(a)/a", "rho = a coth a - 1"
)
def _() -> ClaimResult:
    x = (np.arange(200000) + 0.5) / 100000 - 1
    mean, second = np.exp(2 * x).mean(), np.exp(4 * x).mean()
    rho = second / mean**2 - 1
    ok = close(mean, noise.mgf_uniform(2.0), 1e-8)
    return holds_if(
        ok and close(rho, noise.relative_variance("uniform", 2.0), 1e-7), mgf=mean, rho=rho
    )


@claim(
    "000-(27)",
    "cond",
    "Laplace noise: the exponential moment is 1/(1-b^2) and diverges for b > 1",
    "it is infinite from b = 1 on, b = 1 included",
)
def _() -> ClaimResult:
    mean = expectation(lambda x: np.exp(-np.abs(x) / 0.6) / 1.2, np.exp)

    def cut(x: np.ndarray, width: float) -> np.ndarray:
        return np.exp(-np.abs(x)) / 2 * (np.abs(x) < width)

    grows = [expectation(partial(cut, width=w), np.exp) for w in (20, 40)]
    return conditional(
        close(mean, noise.mgf_laplace(0.6), 1e-6) and np.isinf(noise.mgf_laplace(1.5)),
        np.isfinite(noise.mgf_laplace(1.0)) or grows[1] < 1.5 * grows[0],
        mgf_b06=mean,
        b1_cut_at_20=grows[0],
        b1_cut_at_40=grows[1],
    )


@claim(
    "000-§5",
    "cond",
    "As long as E e^eps is finite the noise cancels",
    "then it vanishes with n_eff, but the 1/sqrt n rate needs E e^(2 eps) finite "
    "(Laplace b < 1/2), "
    "and noise whose law depends on the key acts as a bias log M_i",
)
def _() -> ClaimResult:
    def rate(b: float) -> float:
        rng = generator(13)
        errors = []
        for n in (100, 10000):
            v = np.linspace(-1, 1, n)
            out = [attend(rng.laplace(0, b, n), v) for _ in range(300)]
            errors.append(np.sqrt(np.mean(np.square(out))))
        return float(np.log10(errors[0] / errors[1]) / 2)

    light, heavy = rate(0.2), rate(0.9)
    return conditional(
        abs(light - 0.5) < 0.05 and heavy > 0,
        abs(heavy - 0.5) < 0.1,
        rate_b02=light,
        rate_b09=heavy,
    )
