"""Document 001, first part: the derivation of the log n scale."""

import numpy as np

from attentropy.lab.claims.registry import (
    ClaimResult,
    approximate,
    claim,
    conditional,
    holds_if,
    refuted,
)
from attentropy.lab.claims.tools import close, deviation, gap, generator, normals, products
from attentropy.theory import gaussian
from attentropy.theory.bounds import lse_bounds
from attentropy.theory.entropy import entropy, logsumexp, softmax

N = 1024


def _scores(n: int = N, rows: int = 100, seed: int = 0) -> np.ndarray:
    return generator(seed).normal(size=(rows, n))


def _tilted_mean(lam: float, s: np.ndarray) -> np.ndarray:
    return (softmax(lam * s) * s).sum(-1)


@claim("001-B.1", "holds", "Proposed attention: softmax(kappa log n/d Q K^T) V", "definition")
def _() -> ClaimResult:
    q, k = normals(1, (3, 16), (50, 16))
    p = softmax(np.log(50) / 16 * q @ k.T)
    folded = softmax((np.log(50) / 16 * q) @ k.T)
    return holds_if(close(p.sum(-1), 1) and gap(p, folded) < 1e-14, gap=gap(p, folded))


@claim("001-B.2", "holds", "H = log n + log mean e^(lam s) - lam E_p[s]", "identity")
def _() -> ClaimResult:
    s = _scores(50)
    formula = np.log(50) + np.log(np.exp(0.7 * s).mean(-1)) - 0.7 * _tilted_mean(0.7, s)
    return holds_if(gap(formula, entropy(0.7 * s)) < 1e-12, gap=gap(formula, entropy(0.7 * s)))


def _mean_field(lam: float) -> tuple[float, bool]:
    """Error of log mean e^(lam s) = lam mean s, and whether it is a lower bound on every row."""
    s = _scores(20000, 20)
    true, claimed = logsumexp(lam * s) - np.log(20000), lam * s.mean(-1)
    return float((true - claimed).mean()), bool((true >= claimed).all())


@claim(
    "001-B.3",
    "approx",
    "log mean e^(lam s) is about lam mean(s)",
    "a lower bound (Jensen); for Gaussian scores it misses exactly lam^2 sigma^2/2",
)
def _() -> ClaimResult:
    error, below = _mean_field(1.0)
    return approximate(error, 0.6, sharper=below and abs(error - 0.5) < 0.01, predicted=0.5)


@claim(
    "001-B.4",
    "approx",
    "E_p[s] is about s_max",
    "an upper bound; Gaussian: E_p[s] = lam sigma^2 until lam sigma = sqrt(2 log n)",
)
def _() -> ClaimResult:
    s = _scores()
    top = s.max(-1).mean()
    means = {lam: _tilted_mean(lam, s).mean() for lam in (1.0, 6.0)}
    return approximate(
        top - means[6.0],
        0.2,
        sharper=abs(means[1.0] - 1) < 0.05,
        s_max=top,
        lam_1=means[1.0],
        lam_6=means[6.0],
    )


def _lower_bound(lam: float) -> tuple[float, float, bool]:
    s = _scores()
    claimed = np.log(N) - lam * (s.max(-1) - s.mean(-1))
    true = entropy(lam * s)
    return float(claimed.mean()), float(true.mean()), bool((true >= claimed).all())


@claim(
    "001-B.5",
    "false",
    "H is about log n - lam (s_max - mean s)",
    "only a lower bound, with equality for constant scores",
)
def _() -> ClaimResult:
    claimed, true, bound = _lower_bound(1.0)
    flat = gap(entropy(np.full(N, 3.0)), np.log(N))
    return refuted(
        abs(claimed - true) < 0.5, bound and flat < 1e-12, claimed=claimed, measured=true
    )


@claim(
    "001-B.6",
    "cond",
    "Entropy invariance therefore needs lam proportional to log n",
    "to leading order: constancy in that formula needs lam = (log n - C)/gap, which is affine "
    "and tends to log n/gap; kappa log n with another kappa leaves (1 - kappa gap) log n",
)
def _() -> ClaimResult:
    n, spacing, kept = np.array([64.0, 4096.0, 2.0**18]), 2.0, 2.0
    affine = (np.log(n) - kept) / spacing
    far = (690.0 - kept) / spacing / 690.0  # lam / log n at n = e^690
    log_rule = np.log(n) - 0.3 * np.log(n) * spacing
    return conditional(
        np.ptp(np.log(n) - affine * spacing) < 1e-12 and abs(far * spacing - 1) < 0.01,
        np.ptp(log_rule) < 0.1,
        affine_over_log_n64=affine[0] / np.log(64),
        affine_over_log_n_e690=far,
        kappa_03_n64=log_rule[0],
        kappa_03_n2e18=log_rule[2],
    )


@claim(
    "001-B.7",
    "cond",
    "q.k grows like d, so lam should fall like 1/d",
    "only for aligned vectors; independent centred entries grow like sqrt d",
)
def _() -> ClaimResult:
    rng = generator(3)
    aligned, free = [], []
    for d in (64, 1024):
        q = rng.normal(size=(2000, d))
        k = 0.8 * q + 0.6 * rng.normal(size=q.shape)
        aligned.append((q * k).sum(-1).mean())
        free.append((q * rng.normal(size=q.shape)).sum(-1).std())
    return conditional(
        abs(aligned[1] / aligned[0] - 16) < 0.5,
        free[1] / free[0] > 10,
        aligned_growth=aligned[1] / aligned[0],
        independent_growth=free[1] / free[0],
    )


@claim("001-(1)", "holds", "Standard attention softmax(Q K^T/sqrt d) V", "definition")
def _() -> ClaimResult:
    p = softmax(generator(4).normal(size=(5, 16)) @ generator(5).normal(size=(16, 9)) / 4)
    return holds_if(close(p.sum(-1), 1), row_sum=p.sum(-1).max())


@claim("001-(2)", "holds", "Entropy of a row of weights", "definition; in nats, and 0 log 0 = 0")
def _() -> ClaimResult:
    halves = np.log([0.5, 0.25, 0.125, 0.125, 0.0])
    cases = {entropy(halves): 1.75 * np.log(2), entropy(np.zeros(20)): np.log(20)}
    error = gap(list(cases), list(cases.values()))
    return holds_if(error < 1e-14, of_halves=entropy(halves), by_hand=1.75 * np.log(2), gap=error)


@claim(
    "001-(3)",
    "holds",
    "Entropy invariance means H(softmax(lam s)) is about the same for every n",
    "a definition that can be met (exact scale below); later sections replace it by H ~ log n",
)
def _() -> ClaimResult:
    x = gaussian.scale_for_entropy([256, 4096, 65536], 3.0)
    sizes = ((256, 800), (4096, 150), (65536, 40))
    rows = [entropy(a * _scores(*size)) for a, size in zip(x, sizes, strict=True)]
    z = [deviation(row, 3.0) for row in rows]
    h = [row.mean() for row in rows]
    return holds_if(gap(z, 0) < 4, n256=h[0], n4096=h[1], n65536=h[2])


@claim("001-(4)–(7)", "holds", "H = log Z - lam E_p[s]", "also LSE - lam q.(PK)")
def _() -> ClaimResult:
    s = _scores(30)
    formula = logsumexp(2 * s) - 2 * _tilted_mean(2.0, s)
    return holds_if(gap(formula, entropy(2 * s)) < 1e-12, gap=gap(formula, entropy(2 * s)))


@claim("001-(8)", "holds", "Jensen: exp(mean) <= mean(exp)", "equality for constants only")
def _() -> ClaimResult:
    s = _scores(30)
    slack = np.log(np.exp(s).mean(-1)) - s.mean(-1)
    return holds_if((slack > 0).all(), least_slack=slack.min())


@claim("001-(9)", "holds", "log Z = log n + log mean e^(lam s)", "identity")
def _() -> ClaimResult:
    s = _scores(30)
    error = gap(logsumexp(s), np.log(30) + np.log(np.exp(s).mean(-1)))
    return holds_if(error < 1e-12, gap=error)


@claim(
    "001-(10)",
    "approx",
    "log mean e^(lam s) is about lam mean(s)",
    "error lam^2 sigma^2/2, so lam sigma must be small",
)
def _() -> ClaimResult:
    (small, below), (large, _) = _mean_field(0.3), _mean_field(2.0)
    return approximate(
        small,
        0.1,
        sharper=below and abs(small - 0.045) < 0.005 and abs(large - 2) < 0.1,
        error_at_2=large,
    )


@claim("001-(11)", "approx", "log Z is about log n + lam mean(s)", "log Z >= log n + lam mean(s)")
def _() -> ClaimResult:
    error, below = _mean_field(0.5)
    return approximate(error, 0.2, sharper=below and abs(error - 0.125) < 0.01, predicted=0.125)


@claim("001-(12)", "holds", "max <= LSE <= max + log n", "as 000-(52)")
def _() -> ClaimResult:
    low, value, high = lse_bounds(_scores(40) * 2)
    return holds_if((low <= value).all() and (value <= high).all(), slack=(high - value).min())


@claim(
    "001-(13)",
    "false",
    "E_p[s] is about s_max for moderate lam",
    "needs lam sigma >= sqrt(2 log n); until then E_p[s] = lam sigma^2",
)
def _() -> ClaimResult:
    s = _scores()
    top, mean, frozen = s.max(-1).mean(), _tilted_mean(1.0, s).mean(), _tilted_mean(8.0, s).mean()
    return refuted(
        abs(mean / top - 1) < 0.2,
        abs(mean - 1) < 0.05 and frozen / top > 0.95,
        s_max=top,
        lam_1=mean,
        lam_8=frozen,
    )


@claim(
    "001-(14)–(16)",
    "false",
    "H is about log n - lam (s_max - mean)",
    "a lower bound only; it turns negative once lam sigma > sqrt(log n/2)",
)
def _() -> ClaimResult:
    claimed, true, bound = _lower_bound(3.72)
    before, _, _ = _lower_bound(0.95 * np.sqrt(np.log(N) / 2))
    return refuted(
        claimed >= 0 and abs(claimed - true) < 0.5,
        bound and before > 0,
        claimed=claimed,
        measured=true,
    )


@claim(
    "001-(17),(18)",
    "cond",
    "A constant H = C needs lam (s_max - mean) = log n - C",
    "follows from the formula before, where that formula holds (constant scores, or the bound)",
)
def _() -> ClaimResult:
    s = _scores(1024, 200)
    delta = (s.max(-1) - s.mean(-1)).mean()
    lam = (np.log(N) - 3.0) / delta
    formula = np.log(N) - lam * delta
    true = entropy(lam * s).mean()
    return conditional(
        close(formula, 3.0) and true >= 3.0, abs(true - 3) < 0.3, formula=formula, measured=true
    )


@claim(
    "001-(19)",
    "cond",
    "A gap independent of n gives lam proportional to log n",
    "to leading order in log n: exactly it is affine, (log n - C)/gap; and for unbounded scores "
    "the gap itself grows",
)
def _() -> ClaimResult:
    def excess(log_n: float) -> float:
        """lam(n^2) / lam(n) over the ratio 2 of the logarithms."""
        return (2 * log_n - 3) / (log_n - 3) / 2

    near, far = excess(np.log(100.0)), excess(350.0)
    growth = gaussian.expected_max(10**6) / gaussian.expected_max(100)
    return conditional(
        abs(far - 1) < 0.01 and growth > 1.5,
        abs(near - 1) < 0.05,
        ratio_to_proportional_n100=near,
        ratio_to_proportional_n_e350=far,
        gap_growth_1e2_to_1e6=growth,
    )


@claim("001-(20)–(22)", "cond", "Var(s) = d sigma^4; s/sqrt d has variance sigma^4", "as 000-(65)")
def _() -> ClaimResult:
    rng = generator(6)
    q, k = rng.normal(size=(2, 50000, 32))
    scaled = (q * k).sum(-1).var() / 32
    shared = (q * q).sum(-1).mean() / np.sqrt(32)
    shifted = ((q + 1) * (k + 1)).sum(-1).var() / 32
    return conditional(
        abs(scaled - 1) < 0.05,
        abs(shifted - 1) < 0.2,
        scaled=scaled,
        mean_one=shifted,
        self_score=shared,
    )


@claim(
    "001-(23),(24)",
    "false",
    "Combining both gives lam proportional to log n/d",
    "the variance argument times log n gives log n/sqrt d; with 1/d the spread vanishes as d grows",
)
def _() -> ClaimResult:
    rng = generator(7)
    spread = {}
    for d in (64, 1024):
        s = np.log(N) * products(rng, 4000, d)
        spread[d] = (s / d).std(), (s / np.sqrt(d)).std()
    return refuted(
        abs(spread[1024][0] / spread[64][0] - 1) < 0.1,
        abs(spread[1024][1] / spread[64][1] - 1) < 0.1
        and abs(spread[64][0] / spread[1024][0] - 4) < 0.4,
        over_d_64=spread[64][0],
        over_d_1024=spread[1024][0],
        over_root_64=spread[64][1],
        over_root_1024=spread[1024][1],
    )


def _slope(kappa_sigma: float, n: float) -> float:
    """dH/dlog n under lam = kappa log n."""
    h = [gaussian.expected_entropy(m, kappa_sigma * np.log(m)) for m in (n * 0.99, n * 1.01)]
    return float((h[1] - h[0]) / np.log(1.01 / 0.99))


@claim(
    "001-(24b)",
    "false",
    "kappa = 1 is the theoretical value",
    "nothing fixes it: before freezing dH/dlog n = 1 - (kappa sigma)^2 log n, which vanishes at "
    "another kappa for every n; at kappa = 1 rows are frozen, and H still moves",
)
def _() -> ClaimResult:
    n0 = 1e9
    halved, tuned = (_slope(k / np.sqrt(np.log(n0)), n0) for k in (0.5, 1.0))
    h = [gaussian.expected_entropy(n, np.log(n)) for n in (64, 1024, 65536)]
    return refuted(
        np.ptp(h) < 0.1,
        abs(halved - 0.75) < 0.05 and abs(tuned) < 0.1,
        H_n64=h[0],
        H_n65536=h[2],
        slope_half_tuned=halved,
        rule_half_tuned=0.75,
        slope_tuned=tuned,
    )


@claim(
    "001-(25)",
    "holds",
    "The boxed attention softmax(log n/d Q K^T) V",
    "a definition; for random keys H = log n - (log n)^2/(2d), not constant",
)
def _() -> ClaimResult:
    rng = generator(8)
    h = {}
    for n in (16, 256, 4096):
        q, k = rng.normal(size=(100, 64)), rng.normal(size=(n, 64))
        h[n] = entropy(np.log(n) / 64 * q @ k.T).mean()
    rule = {n: np.log(n) - np.log(n) ** 2 / 128 for n in h}
    return holds_if(
        all(abs(h[n] - rule[n]) < 0.05 for n in h),
        n16=h[16],
        n256=h[256],
        n4096=h[4096],
        rule_4096=rule[4096],
    )


@claim(
    "001-(26)",
    "cond",
    "Laplace's approximation of an integral",
    "interior, non-degenerate maximum",
)
def _() -> ClaimResult:
    x = np.linspace(-1, 1, 400001)
    step = x[1] - x[0]

    def error(f: np.ndarray, curvature: float, lam: float) -> float:
        return float(abs(np.exp(lam * f).sum() * step / np.sqrt(2 * np.pi / (lam * curvature)) - 1))

    inside, edge = error(np.cos(x) - 1, 1.0, 400.0), error(x - 1, 1.0, 400.0)
    return conditional(inside < 0.01, edge < 0.1, interior=inside, boundary=edge)


@claim(
    "001-(27)–(29)",
    "cond",
    "Z is about n times the population integral",
    "for lam sigma < sqrt(2 log n); beyond, log Z = lam s_max to leading order",
)
def _() -> ClaimResult:
    low = gaussian.expected_log_partition(10**6, 2.0) - (np.log(1e6) + 2.0)
    high = gaussian.expected_log_partition(10**6, 12.0) - (np.log(1e6) + 72.0)
    top = 12 * gaussian.expected_max(10**6)
    frozen = gaussian.expected_log_partition(10**6, 12.0) / top
    return conditional(
        abs(low) < 0.01 and abs(frozen - 1) < 0.02,
        abs(high) < 1,
        error_2=low,
        error_12=high,
        frozen_ratio=frozen,
    )
