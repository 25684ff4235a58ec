"""Document 000, second part: entropy, its range, and temperature."""

import numpy as np

from attentropy.lab.claims.registry import (
    ClaimResult,
    approximate,
    claim,
    conditional,
    holds_if,
    refuted,
)
from attentropy.lab.claims.tools import attend, close, gap, generator, products, row_entropy
from attentropy.theory import bounds, gaussian
from attentropy.theory.entropy import entropy, logsumexp, softmax


def _two_level(n: int, k: int, tau: float) -> float:
    scores = np.where(np.arange(n) < k, 1.0, -1.0) / tau
    return float(entropy(scores))


@claim("000-B.3", "holds", "0 <= H <= log n", "0 only at one-hot, log n only at uniform")
def _() -> ClaimResult:
    h = entropy(generator().normal(size=(2000, 16)) * np.logspace(-2, 3, 2000)[:, None])
    ends = [entropy([0.0, -np.inf, -np.inf]), entropy(np.zeros(16)) - np.log(16)]
    return holds_if(
        h.min() >= 0 and h.max() <= np.log(16) + 1e-12 and gap(ends, 0) < 1e-12,
        least=h.min(),
        most=h.max(),
    )


@claim(
    "000-B.4",
    "cond",
    "Huge initial scores give a one-hot row",
    "a large spread does; a large common level does nothing",
)
def _() -> ClaimResult:
    s = generator().normal(size=50)
    spread, level = entropy(1e8 * s), entropy(s + 1e4)
    return conditional(spread < 1e-6, level < 1e-6, spread=spread, level=level, before=entropy(s))


@claim(
    "000-B.5",
    "holds",
    "Cosine scores at temperature 1 keep H above about log n - 0.4745",
    "exactly log n - D(2), D(2) = 0.474474647..., for every n; reached with 20.55 % of keys at +1",
)
def _() -> ClaimResult:
    best = {n: np.log(n) - min(_two_level(n, k, 1.0) for k in range(1, n)) for n in (50, 1000)}
    rows = generator(1).uniform(-1, 1, size=(5000, 50))
    random = np.log(50) - entropy(np.sign(rows) * np.abs(rows) ** 0.2).min()
    d2 = bounds.worst_deficit(2.0)
    return holds_if(
        abs(best[1000] - d2) < 1e-5
        and max(*best.values(), random) <= d2
        and abs(d2 - 0.4745) < 5e-5,
        limit=d2,
        worst_n50=best[50],
        worst_n1000=best[1000],
    )


@claim(
    "000-B.6",
    "cond",
    "A small temperature drives the lower bound to 0",
    "while n is far below e^(2/tau) tau/2; beyond n = e^D(2/tau) the minimum grows as log n - D",
)
def _() -> ClaimResult:
    h = {n: bounds.min_entropy(n, 10.0) for n in (16, 4096, 10**6)}
    brute = min(_two_level(4096, k, 0.2) for k in range(1, 60))
    return conditional(
        h[16] < 0.01 and close(h[4096], brute),
        h[10**6] < 0.01,
        n16=h[16],
        n4096=h[4096],
        n1e6=h[10**6],
    )


@claim("000-(28)", "holds", "Definition of H with its extremes", "0 log 0 counts as 0")
def _() -> ClaimResult:
    p = softmax(generator(2).normal(size=(100, 9)))
    ok = gap(row_entropy(p), entropy(np.log(p))) < 1e-12
    return holds_if(ok and row_entropy([1.0, 0.0]) == 0, one_hot=row_entropy([1.0, 0.0]))


@claim(
    "000-(29)–(31)",
    "holds",
    "H = log Z - sum s e^s / Z",
    "stable form log l - t/l with the maximum taken off: both terms are >= 0",
)
def _() -> ClaimResult:
    s = generator(3).normal(size=(100, 12))
    direct = logsumexp(s) - (softmax(s) * s).sum(-1)
    return holds_if(gap(direct, entropy(s)) < 1e-12, gap=gap(direct, entropy(s)))


@claim(
    "000-(32),(33)",
    "cond",
    "Scores N(0, sigma^2) with sigma -> infinity: one-hot, H about 0",
    "for fixed n and only like (pi^2/6) sqrt(2 log n)/sigma: sigma = 10 still leaves "
    "0.68 at n = 1024",
)
def _() -> ClaimResult:
    far = gaussian.expected_entropy(1024, 1e4)
    rule = np.pi**2 / 6 * gaussian.freezing_spread(1024) / 1e4
    near = gaussian.expected_entropy(1024, 10.0)
    return conditional(
        far < 1e-3 and abs(far / rule - 1) < 0.2,
        near < 0.1,
        sigma_1e4=far,
        rule=rule,
        sigma_10=near,
    )


@claim(
    "000-(34)",
    "holds",
    "The derivative p(1-p) vanishes near one-hot",
    "every entry of the Jacobian is at most 1 - p_max",
)
def _() -> ClaimResult:
    p = softmax(generator(4).normal(size=(500, 8)) * 6)
    entries = np.abs(p[:, :, None] * (np.eye(8) - p[:, None, :])).max((1, 2))
    top = p.max(-1)
    return holds_if(
        (entries <= 1 - top + 1e-15).all() and entries[top > 0.999].max() < 1e-3,
        worst=(entries - 1 + top).max(),
    )


@claim(
    "000-(35)",
    "false",
    "Scores N(mu, 1): H is about log n - 0.4745",
    "the deficit tends to sigma^2/2 = 0.5; 0.4745 belongs to bounded cosine scores",
)
def _() -> ClaimResult:
    deficits = {n: gaussian.expected_deficit(n, 1.0) for n in (10, 100, 1000, 10**6)}
    limit = deficits[10**6]
    return refuted(
        abs(limit - 0.4745) < 1e-3,
        abs(limit - 0.5) < 1e-5,
        n10=deficits[10],
        n100=deficits[100],
        n1000=deficits[1000],
        n1e6=limit,
    )


@claim(
    "000-(36)",
    "false",
    "For standard normal scores the minimal entropy is about log n - 0.4745",
    "normal scores are unbounded: the infimum is 0; log n - sigma^2/2 is typical, not a bound",
)
def _() -> ClaimResult:
    scores = np.zeros(100)
    scores[0] = 40.0  # a possible draw
    low = entropy(scores)
    rows = entropy(generator(5).normal(size=(4000, 100)))
    return refuted(
        rows.min() >= np.log(100) - 0.4745 and low >= np.log(100) - 0.4745,
        low < 1e-10 and abs(rows.mean() - gaussian.expected_entropy(100, 1.0)) < 0.01,
        possible_row=low,
        least_of_4000=rows.min(),
        claimed_bound=np.log(100) - 0.4745,
        mean=rows.mean(),
    )


def _cosine_range(n: int) -> tuple[float, float]:
    """Smallest and largest entropy over two-level and constant rows of cosines."""
    low = min(_two_level(n, k, 1.0) for k in range(1, n))
    return low, float(entropy(np.zeros(n)))


@claim(
    "000-§8a",
    "false",
    "So H ranges over about [0.4745, log n]",
    "cosine scores, temperature 1: [log n - 0.4745, log n]",
)
def _() -> ClaimResult:
    low, high = _cosine_range(400)
    return refuted(
        abs(low - 0.4745) < 0.01,
        abs(low - (np.log(400) - 0.4745)) < 1e-3 and close(high, np.log(400)),
        lowest=low,
        highest=high,
    )


@claim(
    "000-(37)",
    "false",
    "The learnable range of H is about log n - 0.4745, plentiful for large n",
    "it is D(2) = 0.4745 whatever n: too little, which is the point",
)
def _() -> ClaimResult:
    widths = {n: float(np.diff(_cosine_range(n))[0]) for n in (100, 1000)}
    d2 = bounds.worst_deficit(2.0)
    return refuted(
        widths[1000] > 2 * d2,
        all(abs(w - d2) < 1e-3 for w in widths.values()),
        width_n100=widths[100],
        width_n1000=widths[1000],
        claimed_n1000=np.log(1000) - 0.4745,
    )


@claim("000-(38)", "holds", "Softmax with temperature divides the scores by tau", "definition")
def _() -> ClaimResult:
    s = generator(6).normal(size=10)
    p = np.exp(s) ** (1 / 0.3)
    return holds_if(
        gap(p / p.sum(), softmax(s / 0.3)) < 1e-12, gap=gap(p / p.sum(), softmax(s / 0.3))
    )


@claim(
    "000-(39)", "cond", "tau -> 0: one-hot, H -> 0", "H tends to log of the number of tied maxima"
)
def _() -> ClaimResult:
    single, tied = (
        entropy(np.array([1.0, 0.5, 0.0]) / 1e-3),
        entropy(np.array([1.0, 1.0, 0.0]) / 1e-3),
    )
    return conditional(single < 1e-12, tied < 1e-12, single=single, tied=tied, log2=np.log(2))


@claim("000-(40)", "holds", "tau -> infinity: uniform, H -> log n", "dH/dtau = Var_p(s)/tau^3 >= 0")
def _() -> ClaimResult:
    s = generator(7).normal(size=30)
    taus = np.logspace(-2, 6, 200)
    h = entropy(s / taus[:, None])
    slope = (entropy(s / 2.0001) - entropy(s / 1.9999)) / 2e-4
    p = softmax(s / 2)
    rule = (p @ s**2 - (p @ s) ** 2) / 8
    return holds_if(
        np.log(30) - h[-1] < 1e-10 and (np.diff(h) >= -1e-12).all() and close(slope, rule, 1e-6),
        gap_at_1e6=np.log(30) - h[-1],
        slope=slope,
        rule=rule,
    )


@claim("000-(41),(42)", "holds", "H(tau) = log sum e^(s/tau) - E_p[s]/tau", "identity")
def _() -> ClaimResult:
    s, tau = generator(8).normal(size=20), 0.4
    formula = logsumexp(s / tau) - softmax(s / tau) @ s / tau
    return holds_if(gap(formula, entropy(s / tau)) < 1e-12, gap=gap(formula, entropy(s / tau)))


@claim(
    "000-(43)",
    "false",
    "Cosine scores, temperature 1: H lies in [0, log n - 0.4745]",
    "the other way round: [log n - 0.4745, log n]",
)
def _() -> ClaimResult:
    h = entropy(generator(9).uniform(-1, 1, size=(3000, 200)))
    low, high = _cosine_range(200)
    floor = np.log(200) - bounds.worst_deficit(2.0)
    return refuted(
        h.max() <= floor,
        h.min() >= floor and low >= floor and low < floor + 1e-3 and close(high, np.log(200)),
        random_max=h.max(),
        claimed_max=floor,
        true_min=low,
    )


@claim("000-(44)", "approx", "tau = 0.07 gives scores in [-14.3, 14.3]", "+-14.2857")
def _() -> ClaimResult:
    return approximate(14.3 - 1 / 0.07, 0.05, exact=1 / 0.07)


@claim(
    "000-(45)",
    "approx",
    "Then H covers [0, log n]",
    "the minimum is 7.6e-7 at n = 65536; it stops being about 0 near n = e^24",
)
def _() -> ClaimResult:
    low = bounds.min_entropy(65536, 2 / 0.07)
    one = entropy(np.where(np.arange(65536) == 0, 1.0, -1.0) / 0.07)
    limit = bounds.worst_deficit_at(0.07)
    return approximate(
        low, 1e-5, sharper=close(low, one, 1e-6) and abs(limit - 24.219) < 1e-3, log_n_limit=limit
    )


@claim(
    "000-(52)",
    "holds",
    "max <= LSE <= max + log n",
    "sharper below: max(max + log ties, mean + log n)",
)
def _() -> ClaimResult:
    s = generator(10).normal(size=(3000, 7)) * 3
    low, value, high = bounds.lse_bounds(s)
    tied = logsumexp([2.0, 2.0, -1.0]) - 2 - np.log(2)
    return holds_if(
        (low <= value + 1e-12).all() and (value <= high + 1e-12).all() and tied >= 0,
        least_slack_low=(value - low).min(),
        least_slack_high=(high - value).min(),
    )


@claim(
    "000-(53),(54),(56)",
    "cond",
    "One dominant score: LSE is its value, the row one-hot, the output its value",
    "errors at most (n-1) e^-gap each; needs a gap well above log n",
)
def _() -> ClaimResult:
    def errors(distance: float, n: int = 1000) -> tuple[float, float, float]:
        s = np.where(np.arange(n) == 0, distance, 0.0)
        v = np.where(np.arange(n) == 0, 1.0, -1.0)
        return logsumexp(s) - distance, float(1 - softmax(s)[0]), float(abs(attend(s, v) - 1) / 2)

    wide, narrow = errors(20.0), errors(5.0)
    bound = bounds.dominance_error(1000, 20.0)
    return conditional(
        max(wide) <= bound * (1 + 1e-6) and max(wide) < 1e-5,
        max(narrow) < 0.1,
        worst_gap_20=max(wide),
        bound=bound,
        worst_gap_5=max(narrow),
    )


@claim("000-(55)", "cond", "Hard attention takes the value of the largest score", "unique maximum")
def _() -> ClaimResult:
    s, v = np.array([0.1, 0.9, 0.3]), np.array([1.0, 2.0, 3.0])
    unique = attend(s / 1e-4, v)
    tied = attend(np.array([0.9, 0.9, 0.3]) / 1e-4, v)
    return conditional(
        close(unique, 2.0), close(tied, v[0]) or close(tied, v[1]), unique=unique, tied=tied
    )


@claim(
    "000-(67)",
    "cond",
    "Unscaled scores, d -> infinity: one key takes all and H -> 0",
    "for fixed n, and slowly: d = 64 (spread 8) still has H = 0.90 at n = 1024",
)
def _() -> ClaimResult:
    small, huge = gaussian.expected_entropy(1024, 8.0), gaussian.expected_entropy(1024, 1e4)
    return conditional(huge < 1e-2, small < 0.1, d64=small, d1e8=huge)


@claim(
    "000-§14",
    "holds",
    "A large width makes the score variance large and e^s numerically unstable; dividing by "
    "sqrt d mends it",
    "in the formula as written; subtracting the maximum removes the overflow too, and what "
    "remains then is saturation",
)
def _() -> ClaimResult:
    s = products(generator(11), 4096, 4096).astype(np.float32)
    naive, scaled = (np.exp(x) / np.exp(x).sum() for x in (s, s / np.float32(64)))
    p = softmax(s)
    return holds_if(
        np.isnan(naive).any() and close(scaled.sum(), 1, 1e-5) and close(p.sum(), 1),
        nan_as_written=np.isnan(naive).sum(),
        nan_after_scaling=np.isnan(scaled).sum(),
        nan_with_shift=np.isnan(p).sum(),
        top_with_shift=p.max(),
    )
