"""The numbers behind the figures: columns by name, the first one being the abscissa."""

import numpy as np
from scipy.special import ndtri

from attentropy.theory import bounds, gaussian, noise, sparsity
from attentropy.theory.entropy import entropy, log_collision, softmax

Array = np.ndarray
Table = dict[str, Array]

BETAS_RELU = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
BETAS_IDENTITY = (0.0, 0.25, 0.5, 1.0, 2.0)
RATES = (0.5, 0.9, 0.99, 0.999)
SIZES = (10**2, 10**3, 10**4, 10**6)
HEATED = (10**2, 10**4, 10**6, 10**12)
LAWS = (("gaussian", 1.0), ("uniform", 1.7), ("laplace", 0.3), ("laplace", 0.9))


def relu2() -> Table:
    """S of relu^2 against gamma, one column per beta."""
    gamma = np.linspace(0.02, 5, 250)
    return {"gamma": gamma} | {f"beta={b:g}": sparsity.relu2(b, gamma) for b in BETAS_RELU}


def identity() -> Table:
    """S of the identity against gamma, one column per beta (even in beta)."""
    gamma = np.linspace(0.02, 5, 250)
    return {"gamma": gamma} | {f"beta={b:g}": sparsity.identity(b, gamma) for b in BETAS_IDENTITY}


def decay() -> Table:
    """S of geometric weights against n, one column per rate, and the 1/sqrt n floor."""
    n = np.unique(np.round(np.logspace(0, 5, 120)))
    return {"n": n} | {f"rate={r:g}": sparsity.decay(r, n) for r in RATES} | {"floor": n**-0.5}


def exponential() -> Table:
    """S of exp against gamma: the population value, and measured means over n keys."""
    gamma = np.linspace(0, 8, 65)
    table = {"gamma": gamma, "population": sparsity.exp(0.0, gamma)}
    rng = np.random.default_rng(0)
    for n in (100, 1000, 10000):
        g = rng.normal(size=(200_000 // n, n))
        means = [np.exp(-0.5 * (log_collision(x * g) + np.log(n))).mean() for x in gamma]
        table[f"n={n}"] = np.array(means)
    return table


def entropy_spread() -> Table:
    """Exact E[H] against the spread, its annealed formula, and the spread where rows freeze."""
    spread = np.linspace(0, 10, 101)
    table = {"spread": spread}
    for n in SIZES:
        table[f"n={n}"] = gaussian.expected_entropy(n, spread)
        table[f"annealed n={n}"] = np.maximum(np.log(n) - spread**2 / 2, 0.0)
    return table


def heat_capacity() -> Table:
    """Exact E[V]/log n against x/x_c: 2 (x/x_c)^2 up to freezing as n grows, 0 beyond."""
    share = np.linspace(0, 3, 121)
    table = {"x/x_c": share, "limit": np.where(share <= 1, 2 * share**2, 0.0)}
    for n in HEATED:
        spread = share * np.asarray(gaussian.freezing_spread(n))
        table[f"n={n}"] = np.asarray(gaussian.expected_varentropy(n, spread)) / np.log(n)
    return table


def freezing(sizes: tuple[int, ...] = SIZES) -> Table:
    """The phase boundary x = sqrt(2 log n), with the exact entropy on it."""
    n = np.array(sizes, float)
    x = np.asarray(gaussian.freezing_spread(n))
    return {"n": n, "spread": x, "entropy": np.asarray(gaussian.expected_entropy(n, x))}


def entropy_length() -> Table:
    """Exact E[H] against n under each scale rule, all alike at n = 1024 with spread 2."""
    n = 2.0 ** np.arange(6, 21)
    drift = gaussian.drift_table(n, spread0=2.0, n0=1024)
    return {"n": n, "log n": np.log(n)} | drift


def worst_deficit() -> Table:
    """D(2/tau) of cosine scores against the temperature, with its two simple bounds."""
    tau = np.logspace(-2, 1, 241)
    exact = bounds.worst_deficit_at(tau)
    large = 2 / tau - 1 - np.log(2 / tau)
    return {
        "tau": tau,
        "deficit": exact,
        "R^2/8": bounds.quadratic_deficit(2 / tau),
        "R-1-log R": large,
    }


def noise_error() -> Table:
    """RMS output error against n for each law of noise: measured, and predicted where finite."""
    n = 2 ** np.arange(4, 15)
    table: Table = {"n": n.astype(float)}
    for kind, scale in LAWS:
        rho = noise.relative_variance(kind, scale)
        pairs = [_error(kind, scale, rho, int(size)) for size in n]
        table[f"{kind} {scale:g}"] = np.array([pair[0] for pair in pairs])
        table[f"{kind} {scale:g} predicted"] = np.array([pair[1] for pair in pairs])
    return table


def _error(kind: str, scale: float, rho: float, n: int, trials: int = 400) -> tuple[float, float]:
    rng = np.random.default_rng(n)
    ranks = np.arange(n)
    # quantiles in place of draws, v spread over the keys by the golden ratio: smooth in n
    p, v = softmax(ndtri((ranks + 0.5) / n)), ndtri(((ranks + 0.5) * 0.6180339887498949) % 1)
    outputs = noise.simulate(p, v, noise.draw(kind, scale, (trials, n), rng))
    predicted = float(noise.predict(p, v, rho).std) if np.isfinite(rho) else np.nan
    return float(np.sqrt(np.mean((outputs - p @ v) ** 2))), predicted


def gradient_flow() -> Table:
    """E[1 - sum p^2] against E[H]/log n along Gaussian rows of growing spread."""
    fractions = np.linspace(0.02, 0.995, 40)
    table = {"entropy/log n": fractions}
    for n in (16, 256, 4096, 10**6):
        spread = np.asarray(gaussian.scale_for_entropy(n, fractions * np.log(n)))
        table[f"n={n}"] = 1 - np.asarray(gaussian.expected_collision(n, spread))
    return table


def position_amplitude(n: int = 64, d: int = 64) -> Table:
    """Mean H/log n and the mass on the query's own position against positional amplitude."""
    amplitude = np.logspace(-2, 1, 61)
    rate = 10000.0 ** (-np.arange(0, d, 2) / d)
    angle = np.arange(n)[:, None] * rate
    position = np.concatenate([np.sin(angle), np.cos(angle)], 1)
    table = {"amplitude": amplitude}
    for name, size in (("no content", 0.0), ("content", 1.0)):
        content = size * np.random.default_rng(1).normal(size=(8, n, d)) / np.sqrt(2)
        rows = [_focus(content + a * position) for a in amplitude]
        table[f"entropy, {name}"] = np.array([row[0] for row in rows])
        table[f"own position, {name}"] = np.array([row[1] for row in rows])
    return table


def _focus(x: Array) -> tuple[float, float]:
    scores = x @ np.swapaxes(x, -1, -2) / np.sqrt(x.shape[-1])
    own = np.diagonal(softmax(scores), axis1=-2, axis2=-1).mean()
    return float(np.mean(entropy(scores)) / np.log(x.shape[-2])), float(own)
