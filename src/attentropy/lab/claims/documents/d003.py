"""Document 003: scores, softmax, temperature and norms in practice."""

import numpy as np

from attentropy.lab.claims.registry import ClaimResult, claim, conditional, holds_if, refuted
from attentropy.lab.claims.tools import attend, close, derivative, gap, generator, row_entropy
from attentropy.theory import bounds
from attentropy.theory.entropy import deficit, entropy, softmax


@claim(
    "003-1",
    "cond",
    "Unrelated vectors have a dot product near 0",
    "relative to their norms (cosine ~ 1/sqrt d); its absolute size is sqrt d",
)
def _() -> ClaimResult:
    q, k = generator().normal(size=(2, 2000, 1024))
    dot = (q * k).sum(-1)
    cosine = dot / np.linalg.norm(q, axis=1) / np.linalg.norm(k, axis=1)
    return conditional(cosine.std() < 0.05, dot.std() < 1, cosine=cosine.std(), absolute=dot.std())


@claim(
    "003-2",
    "holds",
    "Var(q.k) grows like d",
    "for independent entries; a mean adds 2 mu^2 sigma^2 to each term, which grows like d too",
)
def _() -> ClaimResult:
    q, k = generator(1).normal(size=(2, 50000, 64))

    def variance(mean: float, width: int) -> float:
        return float(((q + mean) * (k + mean))[:, :width].sum(-1).var())

    growth = {mean: variance(mean, 64) / variance(mean, 16) for mean in (0.0, 1.0)}
    return holds_if(
        gap(list(growth.values()), 4) < 0.15
        and abs(variance(0.0, 64) / 64 - 1) < 0.03
        and abs(variance(1.0, 64) / 192 - 1) < 0.03,
        growth_centred_16_to_64=growth[0.0],
        growth_mean_1_16_to_64=growth[1.0],
        centred=variance(0.0, 64),
        mean_1=variance(1.0, 64),
    )


@claim(
    "003-3", "holds", "Softmax gives a probability vector", "with exact zeros once exp underflows"
)
def _() -> ClaimResult:
    p = softmax([0.0, -10.0, -800.0])
    return holds_if(close(p.sum(), 1) and p.min() == 0, total=p.sum(), least=p.min())


@claim(
    "003-4",
    "cond",
    "If scores are large a tiny gap is blown up to a huge ratio",
    "a gap that is small beside the scores; the ratio is e^gap at any level, so a gap that is "
    "small in itself stays a ratio near 1",
)
def _() -> ClaimResult:
    beside, itself, low = (softmax(s) for s in ([1000.0, 1010.0], [1000.0, 1000.01], [0.0, 0.01]))
    return conditional(
        beside[1] / beside[0] > 1e4 and gap(itself, low) < 1e-12,
        itself[1] / itself[0] > 2,
        ratio_gap_1_percent=beside[1] / beside[0],
        ratio_gap_001=itself[1] / itself[0],
        e_gap=np.exp(0.01),
    )


@claim("003-5", "holds", "Keys of weight near 0 get no gradient", "do/ds = p (v - o), do/dv = p")
def _() -> ClaimResult:
    s, v = np.array([0.0, 1.0, -40.0]), np.array([1.0, 2.0, 5.0])
    g = derivative(lambda x: attend(x, v), s)
    return holds_if(abs(g[2]) < 1e-9 < abs(g[0]), hidden=g[2], visible=g[0])


@claim("003-6", "holds", "Scores near 0 give nearly uniform weights", "deficit <= D(R) <= R^2/8")
def _() -> ClaimResult:
    s = 0.1 * generator(2).uniform(-1, 1, size=(500, 30))
    worst = deficit(s) - bounds.worst_deficit(np.ptp(s, axis=-1))
    return holds_if(deficit(s).max() < 0.01 and worst.max() <= 0, deficit=deficit(s).max())


@claim(
    "003-7",
    "holds",
    "exp overflows, underflows, and 0/0 follows",
    "fp64 709.78, fp32 88.72, fp16 11.09",
)
def _() -> ClaimResult:
    limits = [float(np.log(np.finfo(t).max)) for t in (np.float64, np.float32, np.float16)]
    naive = np.exp(np.array([800.0, 1.0]))
    broken = np.isnan(naive / naive.sum()).any() and np.exp(-800.0) == 0
    return holds_if(
        broken and gap(limits, [709.78, 88.72, 11.09]) < 0.01,
        fp64=limits[0],
        fp32=limits[1],
        fp16=limits[2],
    )


@claim(
    "003-8",
    "cond",
    "Subtracting the maximum fixes it; any constant leaves the weights unchanged",
    "a fully hidden row still needs a guard, and a huge added constant rounds differences away",
)
def _() -> ClaimResult:
    s = np.array([800.0, 799.0, -5.0])
    fixed = np.exp(s - s.max())
    hidden = np.full(3, -np.inf)
    guarded = np.exp(hidden - hidden.max())
    rounded = softmax(((s - 800) + 1e20) - 1e20)
    return conditional(
        close((fixed / fixed.sum()).sum(), 1) and softmax(hidden).sum() == 0,
        not np.isnan(guarded).any() and close(rounded, softmax(s)),
        nan_without_guard=np.isnan(guarded).sum(),
        top_after_rounding=rounded.max(),
    )


@claim(
    "003-9",
    "cond",
    "Dividing by sqrt(d_k) cancels the growth at any model size",
    "for independent centred entries of unit variance",
)
def _() -> ClaimResult:
    rng = generator(3)
    unit, wide = [], []
    for d in (16, 1024):
        q, k = rng.normal(size=(2, 4000, d))
        unit.append(((q * k).sum(-1) / np.sqrt(d)).var())
        wide.append((((q + 1) * (k + 1)).sum(-1) / np.sqrt(d)).mean())
    return conditional(
        gap(unit, 1) < 0.1,
        wide[1] / wide[0] < 2,
        d16=unit[0],
        d1024=unit[1],
        mean_d16=wide[0],
        mean_d1024=wide[1],
    )


@claim(
    "003-10",
    "cond",
    "A learnable factor gamma = 1/tau is the temperature",
    "it is the inverse temperature: entropy falls as it grows",
)
def _() -> ClaimResult:
    s = generator(4).normal(size=20)
    h = [entropy(g * s) for g in (0.5, 1.0, 2.0)]
    return conditional(
        close(softmax(4 * s), softmax(s / 0.25)), h[0] < h[1] < h[2], gamma_half=h[0], gamma_2=h[2]
    )


@claim(
    "003-11",
    "false",
    "tau -> 0 makes the softmax infinitely hot",
    "infinitely cold: it freezes to the argmax",
)
def _() -> ClaimResult:
    s = generator(5).normal(size=20)
    cold, hot = entropy(s / 1e-9), entropy(s / 1e4)
    return refuted(
        abs(cold - np.log(20)) < 0.1,
        cold < 1e-9 and abs(hot - np.log(20)) < 1e-6,
        small_tau=cold,
        large_tau=hot,
    )


@claim("003-12", "holds", "Argmax attention is discontinuous", "a tie is a jump")
def _() -> ClaimResult:
    v = np.array([0.0, 1.0])
    jump = v[np.argmax([0.0, 1e-12])] - v[np.argmax([0.0, -1e-12])]
    return holds_if(jump == 1, jump=jump, step=2e-12)


@claim(
    "003-13",
    "holds",
    "At finite temperature a small score change gives a small weight change",
    "Lipschitz 1/tau (sup to l1) and 1/(2 tau) (l2): blows up as tau -> 0",
)
def _() -> ClaimResult:
    worst = {}
    for tau in (1.0, 0.1):
        rng, ratio = generator(6), 0.0
        for _ in range(2000):
            s, e = tau * rng.normal(size=2), tau * 1e-3 * rng.choice([-1, 1], 2)
            moved = np.abs(softmax((s + e) / tau) - softmax(s / tau)).sum()
            ratio = max(ratio, moved / np.abs(e).max())
        worst[tau] = ratio
    return holds_if(
        all(
            0.99 / t < w <= bounds.softmax_lipschitz("inf", "1", temperature=t)
            for t, w in worst.items()
        ),
        tau_1=worst[1.0],
        tau_01=worst[0.1],
    )


@claim(
    "003-14",
    "holds",
    "The additive score v.tanh(.) is bounded",
    "|e| < |v|_1, so R < 2|v|_1 and H >= log n - D(2|v|_1)",
)
def _() -> ClaimResult:
    rng = generator(7)
    v = rng.normal(size=8)
    limit = bounds.additive_score_bound(v)
    e = np.tanh(50 * rng.normal(size=(2000, 8))) @ v
    near = np.tanh(30 * np.sign(v)) @ v
    floor = bounds.entropy_floor(2000, 2 * limit)
    return holds_if(
        np.abs(e).max() <= limit * (1 + 1e-12) and close(near, limit) and entropy(e) >= floor,
        bound=limit,
        reached=near,
    )


@claim(
    "003-14b",
    "holds",
    "Additive attention is a small network and learns relations that a dot product cannot",
    "two units find the key equal to the query among -1, 0, 1, where q k is 0 for every key of the "
    "query 0. Not everything: its scores are bounded, q k is not",
)
def _() -> ClaimResult:
    x = np.array([-1.0, 0.0, 1.0])
    difference = x[:, None] - x
    additive = np.tanh(4 * difference + 2) - np.tanh(4 * difference - 2)
    dot = np.multiply.outer(x, x)
    best = [(s.argmax(-1) == np.arange(3)).mean() for s in (additive, dot)]
    level = np.ptp(dot[1])
    return holds_if(
        best[0] == 1 and best[1] < 1 and level == 0 and np.abs(additive).max() <= 2,
        found_by_additive=best[0],
        found_by_dot=best[1],
        range_of_dot_at_0=level,
        largest_additive=np.abs(additive).max(),
    )


@claim(
    "003-15",
    "cond",
    "Hence additive attention is inherently more robust",
    "and it cannot focus once n > e^D(2|v|_1)",
)
def _() -> ClaimResult:
    v = np.full(4, 0.5)
    limit = bounds.focus_limit(2 * bounds.additive_score_bound(v))
    best = {n: bounds.top_probability_bound(n, 4.0) for n in (8, 10000)}
    return conditional(
        best[8] > 0.85, best[10000] > 0.5, top_n8=best[8], top_n1e4=best[10000], limit=limit
    )


@claim("003-16", "holds", "Saturated tanh has no gradient", "1 - tanh^2 x <= 4 e^(-2|x|)")
def _() -> ClaimResult:
    x = np.linspace(-15, 15, 1001)
    slope = 1 / np.cosh(x) ** 2
    return holds_if(
        (slope <= 4 * np.exp(-2 * np.abs(x))).all() and slope[-1] < 1e-12, at_15=slope[-1]
    )


@claim(
    "003-17",
    "holds",
    "Cosine attention does not depend on norms",
    "positive scaling; scores in [-gamma, gamma] give H >= log n - D(2 gamma)",
)
def _() -> ClaimResult:
    rng = generator(8)
    q, k = rng.normal(size=8), rng.normal(size=(50, 8))

    def weights(a: float, b: float) -> np.ndarray:
        return softmax(
            5 * (a * q) @ (b * k).T / np.linalg.norm(a * q) / np.linalg.norm(b * k, axis=1)
        )

    h = row_entropy(weights(1, 1))
    return holds_if(
        gap(weights(1, 1), weights(7, 0.1)) < 1e-14 and h >= bounds.entropy_floor(50, 10.0),
        gap=gap(weights(1, 1), weights(7, 0.1)),
        entropy=h,
        floor=bounds.entropy_floor(50, 10.0),
    )


def _cosine(q: np.ndarray, k: np.ndarray) -> float:
    return float(q @ k / np.linalg.norm(q) / np.linalg.norm(k))


@claim(
    "003-18",
    "holds",
    "The cosine gradient explodes as the norm vanishes",
    "|d cos/dq| = sin(angle)/|q|",
)
def _() -> ClaimResult:
    q, k = generator(9).normal(size=(2, 6))
    sizes = [
        np.linalg.norm(derivative(lambda x: _cosine(x, k), q * c, c * 1e-5)) for c in (1.0, 1e-3)
    ]
    sine = np.sqrt(1 - _cosine(q, k) ** 2) / np.linalg.norm(q)
    return holds_if(close(sizes, [sine, 1e3 * sine], 1e-5), norm_1=sizes[0], norm_1e3=sizes[1])


@claim(
    "003-19",
    "cond",
    "Adding eps to the norm fixes that easily",
    "the gradient is only bounded by 1/eps, and sqrt(sum q^2) + eps is still NaN at q = 0",
)
def _() -> ClaimResult:
    q = np.zeros(3)
    root_gradient = q / np.sqrt((q * q).sum())
    safe = q / np.sqrt((q * q).sum() + 1e-16)
    finite_value = q @ np.ones(3) / (np.linalg.norm(q) + 1e-8)
    return conditional(
        np.isfinite(finite_value) and np.isfinite(safe).all(),
        np.isfinite(root_gradient).all(),
        nan_in_gradient=np.isnan(root_gradient).sum(),
        bound=1e8,
    )


@claim(
    "003-20",
    "cond",
    "LayerNorm gives mean 0 and variance 1",
    "up to eps: variance sigma^2/(sigma^2 + eps)",
)
def _() -> ClaimResult:
    def variance(size: float) -> float:
        x = size * generator(10).normal(size=4096)
        c = x - x.mean()
        return float((c / np.sqrt((c * c).mean() + 1e-5)).var())

    return conditional(
        abs(variance(1.0) - 1) < 1e-4,
        abs(variance(1e-4) - 1) < 0.1,
        size_1=variance(1.0),
        size_1e4=variance(1e-4),
    )


@claim(
    "003-21",
    "cond",
    "LayerNorm on q and k tames the norms",
    "QK-norm: |q.k| <= d, R <= 2 sqrt d; LayerNorm before the projections bounds nothing",
)
def _() -> ClaimResult:
    rng = generator(11)
    x = rng.normal(size=(300, 64))
    y = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    after = np.abs(y @ y.T).max() / 8
    before = ((y @ (3 * rng.normal(size=(64, 64)) / 8)) ** 2).sum(-1).max()
    return conditional(
        after <= 8 + 1e-9, before <= 64, qk_norm_score=after, squared_norm_after_projection=before
    )


@claim(
    "003-21b",
    "cond",
    "LayerNorm keeps the input of tanh in additive attention away from saturation",
    "whatever the size of the inputs, but not of the weights: the input of tanh has a standard "
    "deviation of sqrt 2 times theirs",
)
def _() -> ClaimResult:
    rng = generator(14)
    states = rng.normal(size=(2, 400, 64))
    w = rng.normal(size=(2, 64, 64)) / 8

    def slope(size: float, *, normed: bool, weights: float = 1.0) -> float:
        """Mean slope of tanh: 1 is unsaturated."""
        x = size * states
        if normed:
            x = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
        inside = sum(weights * x[i] @ w[i] for i in range(2))
        return float((1 / np.cosh(inside) ** 2).mean())

    plain, kept = slope(10.0, normed=False), slope(10.0, normed=True)
    wide = slope(10.0, normed=True, weights=10.0)
    return conditional(
        kept > 5 * plain and close(kept, slope(0.1, normed=True)),
        wide > 0.3,
        slope_without=plain,
        slope_with=kept,
        slope_with_weights_10=wide,
    )


def _positions(amplitude: float, content: float) -> tuple[float, float]:
    rng = generator(12)
    x = content * rng.normal(size=(32, 64)) + amplitude * rng.normal(size=(32, 64))
    p = softmax(x @ x.T / 8)
    return float(row_entropy(p).mean()), float((p.argmax(-1) == np.arange(32)).mean())


@claim(
    "003-22",
    "cond",
    "Too small positional amplitude gives nearly equal scores and a uniform map",
    "only if the content scores do not differ either",
)
def _() -> ClaimResult:
    none, content = _positions(1e-3, 0.0)[0], _positions(1e-3, 2.0)[0]
    return conditional(
        abs(none - np.log(32)) < 1e-3,
        abs(content - np.log(32)) < 0.5,
        no_content=none,
        content=content,
    )


@claim(
    "003-23",
    "cond",
    "Too large an amplitude collapses on one arbitrary position",
    "with identity projections not arbitrary: always the query's own",
)
def _() -> ClaimResult:
    h, own = _positions(10.0, 1.0)
    return conditional(h < 1e-3, own < 0.5, entropy=h, on_itself=own)


@claim(
    "003-24",
    "holds",
    "The average of sharp heads can have several modes",
    "mean H <= H(mean) <= mean H + log h",
)
def _() -> ClaimResult:
    p = softmax(6 * generator(13).normal(size=(8, 64)))
    mean, of_mean = row_entropy(p).mean(), row_entropy(p.mean(0))
    return holds_if(
        mean < of_mean <= mean + np.log(8), mean=mean, of_the_mean=of_mean, bound=mean + np.log(8)
    )
