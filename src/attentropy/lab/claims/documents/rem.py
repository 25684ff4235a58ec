"""Gaussian rows (REM): phases, and what each scale rule does to the entropy."""

import numpy as np
from scipy.special import ndtri

from attentropy.lab.claims.registry import (
    ClaimResult,
    approximate,
    claim,
    conditional,
    holds_if,
    refuted,
)
from attentropy.lab.claims.tools import close, deviation, gap, generator
from attentropy.theory import gaussian
from attentropy.theory.entropy import entropy, softmax, varentropy


@claim(
    "REM-1",
    "holds",
    "Fixed scale, Gaussian scores: H = log n - x^2/2 for x < sqrt(2 log n)",
    "plus [x^2 e^(x^2) - (e^(x^2) - 1)/2]/n while e^(x^2) << n",
)
def _() -> ClaimResult:
    exact = gaussian.expected_entropy(10**6, 1.31)
    simple = np.log(1e6) - 1.31**2 / 2
    corrected = gaussian.second_order_entropy(10**6, 1.31)
    return holds_if(
        abs(exact - simple) < 1e-3 and abs(exact - corrected) < 1e-6,
        exact=exact,
        annealed=simple,
        corrected=corrected,
    )


@claim(
    "REM-2",
    "cond",
    "Freezing at x = sqrt(2 log n), then H -> psi(1) - psi(1-m), m = sqrt(2 log n)/x",
    "as n -> infinity, slowly; at finite n use Phi^-1(1 - 1/n) for sqrt(2 log n)",
)
def _() -> ClaimResult:
    n = 1e6
    x = 2 * gaussian.freezing_spread(n)
    exact, limit = gaussian.expected_entropy(n, x), gaussian.entropy_limit(n, x)
    finite = gaussian.frozen_entropy(-ndtri(1 / n) / x)
    far = [
        gaussian.expected_entropy(m, 5 * gaussian.freezing_spread(m))
        for m in (1e2, 1e4, 1e6, 1e9, 1e12)
    ]
    return conditional(
        (np.diff(far) > 0).all()
        and far[-1] < gaussian.frozen_entropy(0.2)
        and abs(finite - exact) < 0.05,
        abs(limit - exact) < 0.05,
        exact=exact,
        with_quantile=finite,
        limit=limit,
        x5_n1e2=far[0],
        x5_n1e12=far[-1],
        x5_limit=gaussian.frozen_entropy(0.2),
    )


@claim(
    "REM-3",
    "holds",
    "The crossover is wide: at x = sqrt(2 log n) H is about 0.66 to 0.75 of sqrt(2 log n)",
    "2.02, 3.07, 3.86, 4.82 at n = 1e2, 1e4, 1e6, 1e9, where log n - x^2/2 says 0",
)
def _() -> ClaimResult:
    sizes = np.array([1e2, 1e4, 1e6, 1e9])
    h = gaussian.expected_entropy(sizes, gaussian.freezing_spread(sizes))
    share = h / gaussian.freezing_spread(sizes)
    return holds_if(
        share.min() > 0.65 and share.max() < 0.76, n1e2=h[0], n1e4=h[1], n1e6=h[2], n1e9=h[3]
    )


@claim(
    "REM-4",
    "false",
    "lam = kappa log n keeps H constant for Gaussian scores",
    "asymptotically it freezes; it is locally exact where x^2 = log n (H = log(n)/2)",
)
def _() -> ClaimResult:
    h = [gaussian.expected_entropy(n, 0.5 * np.log(n)) for n in (1e2, 1e4, 1e8, 1e16)]
    n = 1e12

    def moved(factor: float) -> float:
        x = np.sqrt(np.log(n))
        return gaussian.expected_entropy(n * factor, x * np.log(n * factor) / np.log(n))

    local = abs(moved(1.05) - moved(0.95)) / np.log(1.05 / 0.95)
    half = moved(1.0) / np.log(n)
    return refuted(
        np.ptp(h) < 0.2,
        local < 0.05 and abs(half - 0.5) < 0.02 and h[3] < h[2] < h[1],
        n1e2=h[0],
        n1e4=h[1],
        n1e8=h[2],
        n1e16=h[3],
        local_slope=local,
    )


@claim(
    "REM-5",
    "approx",
    "lam sigma = sqrt(2 (log n - C)) keeps H = C",
    "good when C is well above 0.75 sqrt(2 log n); exact by inversion",
)
def _() -> ClaimResult:
    n = 2**20
    exact = gaussian.scale_for_entropy(n, 6.0)
    rule = np.sqrt(2 * (np.log(n) - 6))
    low = gaussian.scale_for_entropy(n, 4.0), np.sqrt(2 * (np.log(n) - 4))
    back = gaussian.expected_entropy(n, exact)
    return approximate(
        rule / exact - 1,
        0.06,
        sharper=close(back, 6.0),
        exact_6=exact,
        rule_6=rule,
        exact_4=low[0],
        rule_4=low[1],
    )


@claim(
    "REM-6",
    "holds",
    "Tails e^(-u^g) freeze at a scale growing like (log n)^(1 - 1/g)",
    "exponential tails at a constant scale (g = 1), Gaussian like sqrt(log n)",
)
def _() -> ClaimResult:
    lam, rows = 3.0, 200
    samples = [entropy(lam * generator(1).exponential(size=(rows, n))) for n in (1000, 20000)]
    h = [sample.mean() for sample in samples]
    limit = gaussian.frozen_entropy(1 / lam)
    z = [deviation(sample, limit) for sample in samples]
    gauss = gaussian.freezing_spread(1e12) / gaussian.freezing_spread(1e3)
    return holds_if(
        gap(z, 0) < 4 and close(gauss, 2.0),
        n1000=h[0],
        n20000=h[1],
        limit=limit,
        gaussian_growth=gauss,
    )


@claim(
    "REM-7",
    "false",
    "The log n scale is right for bounded iid scores",
    "uniform scores: H = log n - log lam + const, so lam must grow like n",
)
def _() -> ClaimResult:
    rng = generator(2)
    logs, lines = [], []
    for n in (64, 2048, 131072):
        s = rng.uniform(size=(20, n))
        logs.append(np.mean(entropy(np.log(n) * s)))
        lines.append(np.mean(entropy(0.05 * n * s)))
    return refuted(
        np.ptp(logs) < 1,
        np.ptp(lines) < 0.5,
        log_n64=logs[0],
        log_n131072=logs[2],
        linear_n64=lines[0],
        linear_n131072=lines[2],
    )


@claim(
    "REM-8",
    "holds",
    "log n is right for a planted gap",
    "k keys at margin D: constant mass for lam = (log n + c)/D, constant H for lam D "
    "= log n + log log n + c",
)
def _() -> ClaimResult:
    sizes = np.array([64.0, 2.0**20, 2.0**30])

    def entropy_two(n: np.ndarray, z: np.ndarray) -> np.ndarray:
        q = (n - 1) * np.exp(-z)
        return np.log1p(q) + z * q / (1 + q)

    mass = 1 / (1 + (sizes - 1) * np.exp(-(np.log(sizes) + 1)))
    h = entropy_two(sizes, np.log(sizes) + np.log(np.log(sizes)))
    drift = entropy_two(sizes, np.log(sizes) + 1)
    return holds_if(
        np.ptp(mass) < 0.01 and np.ptp(h) < 0.3 and np.ptp(drift) > 1,
        mass=mass[0],
        H_n64=h[0],
        H_n2e30=h[2],
        drift=np.ptp(drift),
    )


@claim(
    "REM-9",
    "holds",
    "A planted key gets 1/(1 + exp(log n + lam^2 sigma^2/2 - lam margin))",
    "best lam = margin/sigma^2 whatever n; possible only if margin > sigma sqrt(2 log n)",
)
def _() -> ClaimResult:
    n, margin, lam = 4096, 5.71, 2.0
    bulk = generator(3).normal(size=(1500, n))
    scores = np.concatenate([np.full((1500, 1), margin), bulk], 1)
    measured = softmax(lam * scores)[:, 0].mean()
    rule = gaussian.planted_mass(lam, n, margin)
    grid = np.linspace(0.1, 10, 400)
    best = [grid[np.argmax(gaussian.planted_mass(grid, m, 4.0))] for m in (100, 10**6)]
    below = gaussian.planted_mass(grid, 1e12, 0.7 * gaussian.retrieval_threshold(1e12)).max()
    return holds_if(
        abs(measured - rule) < 0.02 and gap(best, 4.0) < 0.03 and below < 0.01,
        measured=measured,
        rule=rule,
        best_scale=best[1],
        below_threshold=below,
    )


@claim(
    "REM-10",
    "holds",
    "Cosines of random unit keys freeze at d n^(2/d) sqrt(1 - n^(-2/d))",
    "sqrt(2 d log n) for log n << d, d n^(2/d) for log n >> d; below it the "
    "population deficit holds",
)
def _() -> ClaimResult:
    d, n = 64, 20000
    critical = gaussian.sphere_freezing_scale(d, n)
    rng = generator(4)
    keys = rng.normal(size=(n, d))
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    q = rng.normal(size=(20, d))
    q /= np.linalg.norm(q, axis=1, keepdims=True)
    measured = np.log(n) - entropy(12.0 * q @ keys.T).mean()
    small = gaussian.sphere_freezing_scale(1e7, n) / np.sqrt(2e7 * np.log(n))
    large = gaussian.sphere_freezing_scale(2, n) / (2.0 * n)
    frozen = np.log(n) - entropy(2 * critical * q @ keys.T).mean()
    return holds_if(
        abs(measured - gaussian.sphere_deficit(d, 12.0)) < 0.05
        and abs(small - 1) < 1e-3
        and abs(large - 1) < 1e-3
        and frozen < gaussian.sphere_deficit(d, 2 * critical) - 1,
        critical=critical,
        deficit_12=measured,
        rule_12=gaussian.sphere_deficit(d, 12.0),
        frozen_deficit=frozen,
    )


@claim(
    "REM-11",
    "holds",
    "Below freezing the varentropy is x^2: a small change of the scale by c takes c x^2 of entropy",
    "E V = -x dE[H]/dx for every n; less x^2 e^(x^2) (1 + 2 x^2)/n while e^(x^2) << n",
)
def _() -> ClaimResult:
    n, x, step = 1e6, 1.31, 1e-3
    exact = gaussian.expected_varentropy(n, x)
    corrected = x * x * (1 - np.exp(x * x) * (1 + 2 * x * x) / n)
    up, down = (gaussian.expected_entropy(n, x * np.exp(s)) for s in (step, -step))
    sample = varentropy(x * generator(5).normal(size=(400, 20000)))
    return holds_if(
        abs(exact - x * x) < 1e-3
        and abs(exact - corrected) < 1e-6
        and abs((down - up) / (2 * step) - exact) < 1e-5
        and abs(deviation(sample, gaussian.expected_varentropy(20000, x))) < 4,
        exact=exact,
        square=x * x,
        corrected=corrected,
        slope=(down - up) / (2 * step),
        measured=sample.mean(),
    )


@claim(
    "REM-12",
    "cond",
    "At x = sqrt(2 log n) the heat capacity V jumps from 2 log n to 0 in units of log n",
    "as n -> infinity, slowly: V/log n peaks below the freezing spread, and the peak grows to 2; "
    "beyond it V -> m psi'(1-m), m = sqrt(2 log n)/x",
)
def _() -> ClaimResult:
    share = np.linspace(0.3, 1.2, 91)
    sizes = (1e6, 1e12, 1e24, 1e48)
    peaks, places = [], []
    for n in sizes:
        heat = gaussian.expected_varentropy(n, share * gaussian.freezing_spread(n)) / np.log(n)
        peaks.append(heat.max())
        places.append(share[heat.argmax()])
    far = [
        gaussian.expected_varentropy(n, 5 * gaussian.freezing_spread(n)) for n in (1e4, 1e8, 1e12)
    ]
    limit = gaussian.frozen_varentropy(0.2)
    return conditional(
        (np.diff(peaks) > 0).all()
        and (np.diff(places) >= 0).all()
        and (np.diff(far) > 0).all()
        and far[-1] < limit,
        abs(peaks[0] - 2) < 0.1,
        peak_n1e6=peaks[0],
        peak_n1e48=peaks[-1],
        place_n1e6=places[0],
        place_n1e48=places[-1],
        x5_n1e12=far[-1],
        x5_limit=limit,
    )
