"""Document 000, fourth part: information, heads, spectra, positions, regularisation."""

import numpy as np

from attentropy.lab.claims.registry import ClaimResult, claim, conditional, holds_if, refuted
from attentropy.lab.claims.tools import close, gap, generator, mean_entropy, row_entropy
from attentropy.theory import gaussian, init
from attentropy.theory.entropy import (
    deficit,
    entropy,
    entropy_gradient,
    geometric_entropy,
    kl_from_uniform,
    softmax,
)


@claim("000-(68)", "holds", "Information bottleneck: I(Z;X) - beta I(Z;Y)", "to be minimised")
def _() -> ClaimResult:
    joint = np.array([[0.4, 0.1], [0.1, 0.4]])

    def information(table: np.ndarray) -> float:
        outer = np.outer(table.sum(1), table.sum(0))
        return float((table * np.log(np.where(table > 0, table, 1) / outer)).sum())

    keep, drop = information(np.diag([0.5, 0.5])) - 10 * information(joint), 0.0
    return holds_if(keep < drop and information(joint) > 0, keep_all=keep, keep_none=drop)


@claim(
    "000-§15",
    "false",
    "High attention entropy means a larger I(Z;X)",
    "for Gaussian values read with noise of variance s^2, I(o;V) = log(1 + sum p^2/s^2)/2 falls "
    "as the row flattens; what grows is the number of tokens that the output draws on",
)
def _() -> ClaimResult:
    base, values = generator(17).normal(size=64), generator(18).normal(size=(40000, 64))
    noise = 0.1 * generator(19).normal(size=40000)
    heights, info, rule, keys = [], [], [], []
    for spread in (8.0, 2.0, 0.2):
        p = softmax(spread * base)
        out = values @ p
        collision = float((p * p).sum())
        heights.append(float(row_entropy(p)))
        info.append(float(-0.5 * np.log1p(-(np.corrcoef(out, out + noise)[0, 1] ** 2))))
        rule.append(0.5 * np.log1p(collision / 0.01))
        keys.append(1 / collision)
    return refuted(
        (np.diff(info) > 0).all(),
        (np.diff(heights) > 0).all() and (np.diff(keys) > 0).all() and gap(info, rule) < 0.03,
        H_sharp=heights[0],
        H_flat=heights[2],
        I_sharp=info[0],
        I_flat=info[2],
        rule_flat=rule[2],
        keys_sharp=keys[0],
        keys_flat=keys[2],
    )


@claim(
    "000-(69),(70)", "holds", "Heads attend apart; outputs are joined and projected", "definition"
)
def _() -> ClaimResult:
    rng = generator(18)
    x, w = rng.normal(size=(5, 8)), rng.normal(size=(8, 8))
    heads = [softmax(x[:, i : i + 4] @ x[:, i : i + 4].T / 2) @ x[:, i : i + 4] for i in (0, 4)]
    joined = np.concatenate(heads, 1) @ w
    summed = heads[0] @ w[:4] + heads[1] @ w[4:]
    return holds_if(gap(joined, summed) < 1e-13, gap=gap(joined, summed))


@claim(
    "000-(71)",
    "cond",
    "The total entropy of independent heads is the sum of theirs",
    "for the joint index; the averaged map obeys mean H <= H(mean) <= mean H + log h",
)
def _() -> ClaimResult:
    p = softmax(2 * generator(19).normal(size=(4, 16)))
    h = row_entropy(p)
    joint = row_entropy(np.einsum("a,b,c,d->abcd", *p).reshape(-1))
    averaged = row_entropy(p.mean(0))
    ok = h.mean() <= averaged <= h.mean() + np.log(4)
    return conditional(
        close(joint, h.sum()) and ok,
        close(averaged, h.sum(), 0.1),
        joint=joint,
        total=h.sum(),
        of_the_mean=averaged,
    )


def _map(n: int = 64, spread: float = 1.0) -> np.ndarray:
    return softmax(spread * generator(20).normal(size=(n, n)))


@claim(
    "000-§17a", "holds", "The map is stochastic: eigenvalue 1 with eigenvector of ones", "algebra"
)
def _() -> ClaimResult:
    a = _map()
    top = np.abs(np.linalg.eigvals(a)).max()
    return holds_if(gap(a @ np.ones(64), 1) < 1e-13 and close(top, 1), top=top)


@claim(
    "000-§17b",
    "cond",
    "All other eigenvalues have modulus below 1",
    "without masks (positive matrix); block masks give several eigenvalues 1",
)
def _() -> ClaimResult:
    second = np.sort(np.abs(np.linalg.eigvals(_map())))[-2]
    scores = np.kron(np.where(np.eye(4) > 0, 0.0, -np.inf), np.ones((16, 16)))
    blocks = softmax(scores + generator(21).normal(size=(64, 64)))
    other = np.sort(np.abs(np.linalg.eigvals(blocks)))[-2]
    return conditional(second < 1 - 1e-6, other < 1 - 1e-6, full=second, blocks=other)


@claim(
    "000-(72)",
    "false",
    "H is about -sum lambda log lambda over the eigenvalues of the map",
    "no relation: a uniform map has H = log n and spectrum (1, 0, ...); "
    "the von Neumann entropy of A A^T runs the opposite way",
)
def _() -> ClaimResult:
    def spectral(a: np.ndarray) -> float:
        size = np.abs(np.linalg.eigvals(a))
        size = size[size > 1e-12]
        return float(-(size * np.log(size)).sum())

    def von_neumann(a: np.ndarray) -> float:
        w = np.linalg.eigvalsh(a @ a.T / np.trace(a @ a.T)).clip(0)
        return float(row_entropy(w))

    a, flat = _map(), np.full((64, 64), 1 / 64)
    h = row_entropy(a).mean()
    opposite = von_neumann(flat) < 1e-9 and close(von_neumann(np.eye(64)), np.log(64))
    return refuted(
        abs(spectral(a) / h - 1) < 0.2,
        abs(spectral(flat)) < 1e-9 and close(row_entropy(flat).mean(), np.log(64)) and opposite,
        H=h,
        spectral=spectral(a),
        uniform_H=np.log(64),
        uniform_spectral=spectral(flat),
    )


@claim(
    "000-(73)",
    "false",
    "The effective rank of the map is exp(H)",
    "exp(H) counts attended keys; effective rank is exp of the entropy of singular values",
)
def _() -> ClaimResult:
    flat, eye = np.full((64, 64), 1 / 64), np.eye(64)
    ranks = [init.effective_rank(flat), init.effective_rank(eye)]
    keys = [np.exp(row_entropy(flat).mean()), np.exp(row_entropy(eye).mean())]
    return refuted(
        close(ranks, keys),
        close(ranks, [1, 64], 1e-6) and close(keys, [64, 1]),
        uniform_expH=keys[0],
        uniform_rank=ranks[0],
        identity_expH=keys[1],
        identity_rank=ranks[1],
    )


@claim(
    "000-(74)", "holds", "Positions are added to the inputs of q and k", "definition: four terms"
)
def _() -> ClaimResult:
    x, y, p, r = generator(22).normal(size=(4, 8))
    terms = x @ y + x @ r + p @ y + p @ r
    return holds_if(close((x + p) @ (y + r), terms), score=terms)


@claim(
    "000-§18a",
    "cond",
    "Random position encodings raise H",
    "of a row that is peaked already; otherwise extra independent score variance lowers it: "
    "log n - (sigma^2 + sigma_p^2)/2",
)
def _() -> ClaimResult:
    h = [mean_entropy(float(np.hypot(1, extra)), 256, 400) for extra in (0.0, 1.0, 2.0)]
    exact = [gaussian.expected_entropy(256, float(np.hypot(1, extra))) for extra in (0.0, 1.0, 2.0)]
    peak = np.where(np.arange(256) == 0, 14.0, 0.0)
    gain = np.mean(entropy(peak + 2.5 * generator(23).normal(size=(400, 256)))) - entropy(peak)
    return conditional(
        gain > 0 and close(h, exact, 0.02),
        h[1] > h[0] and h[2] > h[1],
        none=h[0],
        sigma_1=h[1],
        sigma_2=h[2],
        gain_of_a_peaked_row=gain,
    )


@claim(
    "000-(75)",
    "cond",
    "A relative bias towards neighbours lowers H",
    "for a decaying bias; alone it gives the geometric entropy whatever n",
)
def _() -> ClaimResult:
    distance = np.arange(400)
    s = generator(24).normal(size=400)
    near, undone = entropy(s - 0.5 * distance), entropy(s + (-s))
    pure = entropy(-0.5 * distance)
    return conditional(
        near < entropy(s) and close(pure, geometric_entropy(np.exp(-0.5))),
        undone < entropy(s),
        without=entropy(s),
        decaying=near,
        opposing_bias=undone,
        pure=pure,
    )


@claim(
    "000-(76)",
    "false",
    "Adding +lambda H to the loss (lambda > 0) encourages high entropy",
    "minimising +H lowers it; subtract it to encourage entropy",
)
def _() -> ClaimResult:
    ends = {}
    for sign in (1, -1):
        s = generator(25).normal(size=16)
        for _ in range(3000):
            s = s - sign * 2.0 * entropy_gradient(s)
        ends[sign] = entropy(s)
    start = entropy(generator(25).normal(size=16))
    return refuted(
        ends[1] > start,
        ends[-1] > start and close(ends[-1], np.log(16), 1e-3),
        start=start,
        with_plus=ends[1],
        with_minus=ends[-1],
    )


@claim(
    "000-§20",
    "cond",
    "Label smoothing regularises entropy",
    "it adds KL(u || p); the confidence penalty is KL(p || u): they agree near uniform only",
)
def _() -> ClaimResult:
    s = generator(26).normal(size=10)
    p, eps, y = softmax(s), 0.1, np.eye(10)[3]
    smoothed = -((1 - eps) * y + eps / 10) @ np.log(p)
    split = -(1 - eps) * np.log(p[3]) + eps * (kl_from_uniform(s) + np.log(10))
    near = kl_from_uniform(0.01 * s) / deficit(0.01 * s)
    far = kl_from_uniform(5 * s) / deficit(5 * s)
    return conditional(
        close(smoothed, split) and abs(near - 1) < 0.02,
        abs(far - 1) < 0.1,
        ratio_near=near,
        ratio_far=far,
    )


@claim(
    "000-(77)",
    "holds",
    "Sparse softmax: e^(s_ij)/sum over k in N(i) of e^(s_ik) for j in N(i), else 0",
    "written with one index, e^(s_i)/sum over N(i) of e^(s_j), a slip of the pen: read literally "
    "its rows do not sum to 1",
)
def _() -> ClaimResult:
    s = generator(27).normal(size=(6, 6))
    seen = np.abs(np.subtract.outer(np.arange(6), np.arange(6))) <= 1
    e = np.exp(s)
    literal = (np.diag(e)[:, None] / (e * seen).sum(1, keepdims=True) * seen).sum(1)
    meant = e * seen / (e * seen).sum(1, keepdims=True)
    return holds_if(
        close(meant.sum(1), 1) and gap(meant, softmax(np.where(seen, s, -np.inf))) < 1e-14,
        row_sum_as_meant=meant.sum(1).max(),
        worst_row_sum_as_written=literal[np.abs(literal - 1).argmax()],
    )


@claim(
    "000-(78)",
    "cond",
    "A row limited to N(i) has H <= log|N(i)| < log n",
    "strict only if |N(i)| < n",
)
def _() -> ClaimResult:
    h = [entropy(np.where(np.arange(20) < k, 0.0, -np.inf)) for k in (5, 20)]
    return conditional(
        close(h[0], np.log(5)) and h[0] < np.log(20), h[1] < np.log(20) - 1e-12, five=h[0], all=h[1]
    )


@claim("000-(79)", "holds", "Choosing the argmax has entropy 0", "one-hot row")
def _() -> ClaimResult:
    return holds_if(row_entropy(np.eye(7)[2]) == 0, entropy=row_entropy(np.eye(7)[2]))


@claim(
    "000-(80)",
    "cond",
    "Gumbel-softmax samples from softmax(s); discrete as tau -> 0",
    "the argmax of s + g does, at every tau; the relaxed weights have another mean",
)
def _() -> ClaimResult:
    s = np.array([1.0, 0.0, -1.0])
    noisy = s + generator(28).gumbel(size=(200000, 3))
    counts = np.bincount(noisy.argmax(1), minlength=3) / 200000
    relaxed = softmax(noisy).mean(0)
    return conditional(
        gap(counts, softmax(s)) < 0.005,
        gap(relaxed, softmax(s)) < 0.02,
        argmax_first=counts[0],
        softmax_first=softmax(s)[0],
        relaxed_first=relaxed[0],
    )
