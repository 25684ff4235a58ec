"""Document 000, third part: geometry of the simplex and sensitivity."""

import numpy as np

from attentropy.lab.claims.registry import (
    ClaimResult,
    approximate,
    claim,
    conditional,
    holds_if,
    refuted,
)
from attentropy.lab.claims.tools import attend, close, derivative, gap, generator, jacobian, normals
from attentropy.theory import init
from attentropy.theory.bounds import softmax_inf1_norm
from attentropy.theory.entropy import (
    deficit,
    entropy,
    entropy_gradient,
    euclidean_entropy_gradient,
    fisher_metric,
    kl_from_uniform,
    riemannian_entropy_gradient,
    softmax,
)


@claim(
    "000-(46)",
    "holds",
    "Distributions over n classes form the simplex of n - 1 dimensions",
    "softmax reaches its whole interior, and no other point",
)
def _() -> ClaimResult:
    p = softmax(generator().normal(size=(500, 6)) * 3)
    chosen = generator(1).dirichlet(np.ones(6), size=500)
    dimensions = np.linalg.matrix_rank(p - p.mean(0), tol=1e-10)
    missed = gap(softmax(np.log(chosen)), chosen)
    return holds_if(
        p.min() >= 0 and gap(p.sum(-1), 1) < 1e-14 and dimensions == 5 and missed < 1e-14,
        dimensions=dimensions,
        sum_error=gap(p.sum(-1), 1),
        points_missed_by=missed,
    )


@claim(
    "000-(47)",
    "holds",
    "H = log n - KL(p || uniform)",
    "so H is log n minus a divergence; it is not a distance itself",
)
def _() -> ClaimResult:
    s = generator(1).normal(size=(200, 9))
    p = softmax(s)
    kl = (p * np.log(p * 9)).sum(-1)
    return holds_if(gap(entropy(s), np.log(9) - kl) < 1e-12, gap=gap(entropy(s), np.log(9) - kl))


@claim(
    "000-(48)",
    "holds",
    "The Fisher metric is the mean outer product of scores",
    "fix coordinates first",
)
def _() -> ClaimResult:
    s = generator(2).normal(size=5)
    p = softmax(s)
    grads = np.eye(5) - p  # d log p_x / d s
    outer = np.einsum("x,xi,xj->ij", p, grads, grads)
    return holds_if(gap(outer, fisher_metric(p)) < 1e-14, gap=gap(outer, fisher_metric(p)))


@claim(
    "000-(49)",
    "cond",
    "The categorical Fisher metric is delta_ij/p_i - 1",
    "equal to sum u^2/p on tangent vectors (sum u = 0) and degenerate along p; in n-1 independent "
    "coordinates it is delta_ij/p_i + 1/p_n",
)
def _() -> ClaimResult:
    p = softmax(generator(3).normal(size=5))
    metric = np.diag(1 / p) - 1
    u = generator(4).normal(size=5)
    u -= u.mean()
    free = np.diag(1 / p[:-1]) + 1 / p[-1]
    tangent = gap(u @ metric @ u, (u * u / p).sum())
    same = gap(u[:-1] @ free @ u[:-1], (u * u / p).sum())
    return conditional(
        tangent < 1e-12 and same < 1e-11 and gap(metric @ p, 0) < 1e-13,
        close(metric[:-1, :-1], free),
        tangent_gap=tangent,
        null_vector=gap(metric @ p, 0),
        coordinate_gap=gap(metric[:-1, :-1], free),
    )


@claim(
    "000-(50)",
    "false",
    "In the Fisher metric the gradient of H is -log p - 1",
    "that is the Euclidean one, not even tangent; the Riemannian gradient is -p (log "
    "p + H) = dH/ds",
)
def _() -> ClaimResult:
    s = generator(5).normal(size=6)
    p = softmax(s)
    flat, true = euclidean_entropy_gradient(p), riemannian_entropy_gradient(p)
    u = p * generator(6).normal(size=6)
    u -= p * u.sum()
    change = -(np.log(p) + 1) @ u  # dH along the tangent u
    paired_flat, paired_true = (flat * u / p).sum(), (true * u / p).sum()
    return refuted(
        close(paired_flat, change) and abs(flat.sum()) < 1e-9,
        close(paired_true, change, 1e-10) and close(true, entropy_gradient(s), 1e-12),
        dH=change,
        claimed=paired_flat,
        corrected=paired_true,
        claimed_normal_part=flat.sum(),
    )


@claim(
    "000-§10",
    "approx",
    "The gradient of H points to the uniform distribution",
    "only <grad H, u-p> = KL(u||p) + KL(p||u) >= 0 is true; the direction differs",
)
def _() -> ClaimResult:
    s = generator(7).normal(size=8)
    p = softmax(s)
    g = -np.log(p) - 1
    tangent, way = g - g.mean(), 1 / 8 - p
    cosine = tangent @ way / np.linalg.norm(tangent) / np.linalg.norm(way)
    pairing = g @ way - (deficit(s) + kl_from_uniform(s))
    return approximate(1 - cosine, 0.3, sharper=abs(pairing) < 1e-12, cosine=cosine)


def _sensitivity(s: np.ndarray, v: np.ndarray) -> np.ndarray:
    p = softmax(s)
    return p[:, None] * (v - p @ v)


@claim(
    "000-(57),(58)",
    "holds",
    "The noisy output expands as o + sum p (v - o) eps",
    "second-order error; a global bound is diam(V) tanh(range/4)",
)
def _() -> ClaimResult:
    s, v = normals(8, 9, (9, 3))
    eps = generator(10).normal(size=9)

    def error(h: float) -> float:
        return float(
            np.linalg.norm(attend(s + h * eps, v) - attend(s, v) - h * eps @ _sensitivity(s, v))
        )

    order = np.log2(error(2e-3) / error(1e-3))
    return holds_if(abs(order - 2) < 0.05, order=order)


@claim(
    "000-(59)–(61)",
    "holds",
    "do/ds_i = p_i (v_i - o)",
    "also p_i (1-p_i)(v_i - o without key i)",
)
def _() -> ClaimResult:
    s, v = normals(11, 7, (7, 2))
    exact = _sensitivity(s, v)
    p = softmax(s)
    without = np.stack([np.delete(p, i) @ np.delete(v, i, 0) / (1 - p[i]) for i in range(7)])
    rewritten = (p * (1 - p))[:, None] * (v - without)
    numeric = derivative(lambda x: attend(x, v), s)
    return holds_if(
        gap(exact, numeric) < 1e-9 and gap(exact, rewritten) < 1e-14,
        numeric_gap=gap(exact, numeric),
    )


@claim(
    "000-(62)",
    "cond",
    "The worst perturbation is eps sign<do/ds_i, v> for a target direction v",
    "first order, sup norm, and only for the direction that solves w ~ sum sign<g_i,w> g_i",
)
def _() -> ClaimResult:
    rng = generator(13)
    g = _sensitivity(rng.normal(size=8), rng.normal(size=(8, 3)))
    signs = np.array(np.meshgrid(*[[-1, 1]] * 8)).reshape(8, -1).T
    best = np.linalg.norm(signs @ g, axis=1).max()
    w = signs[np.linalg.norm(signs @ g, axis=1).argmax()] @ g
    fixed = np.linalg.norm(np.sign(g @ w) @ g)
    random = min(np.linalg.norm(np.sign(g @ rng.normal(size=3)) @ g) for _ in range(50))
    return conditional(
        close(fixed, best), random > 0.95 * best, best=best, fixed_point=fixed, random_target=random
    )


@claim(
    "000-§13a",
    "holds",
    "The factor p(1-p) is small at 0 and 1 and largest at 1/2",
    "after writing the change of the output as p (1-p)(v_i - o without i)",
)
def _() -> ClaimResult:
    p = np.linspace(0, 1, 1001)
    f = p * (1 - p)
    return holds_if(p[f.argmax()] == 0.5 and f[0] == f[-1] == 0, best=p[f.argmax()], value=f.max())


@claim(
    "000-§13b",
    "cond",
    "Uniform weights maximise the adversarial effect",
    "in the sup norm only (norm 1 for even n); for l2 and l1 two equal keys are worst",
)
def _() -> ClaimResult:
    n = 8
    flat, pair = np.full(n, 1 / n), np.array([0.5, 0.5] + [0.0] * (n - 2))
    l2 = [np.linalg.norm(jacobian(p), 2) for p in (flat, pair)]
    l1 = [np.abs(jacobian(p)).sum(0).max() for p in (flat, pair)]
    odd = softmax_inf1_norm(np.full(7, 1 / 7))
    return conditional(
        close(softmax_inf1_norm(flat), 1) and close(odd, 1 - 1 / 49),
        l2[0] >= l2[1] and l1[0] >= l1[1],
        sup_uniform=softmax_inf1_norm(flat),
        sup_uniform_n7=odd,
        l2_uniform=l2[0],
        l2_pair=l2[1],
        l1_uniform=l1[0],
        l1_pair=l1[1],
    )


@claim("000-(63),(64)", "holds", "Attention with scores q.k/sqrt(d)", "definition")
def _() -> ClaimResult:
    q, k = normals(14, (4, 16), (9, 16))
    p = softmax(q @ k.T / 4)
    return holds_if(p.shape == (4, 9) and close(p.sum(-1), 1), rows=p.shape[0], keys=p.shape[1])


@claim(
    "000-(65),(66)",
    "cond",
    "Var(q.k) = d sigma^4 and Var(q.k/sqrt d) = sigma^4",
    "independent, centred entries; with mean mu it is d (sigma^4 + 2 mu^2 sigma^2), "
    "and q = k differs",
)
def _() -> ClaimResult:
    rng = generator(16)
    q, k = rng.normal(size=(2, 40000, 64))
    centred = (q * k).sum(-1).var()
    shifted = ((q + 0.5) * (k + 0.5)).sum(-1).var()
    rule = init.score_variance(64, 1.0, 0.5, scale=1.0)
    own = (q * q).sum(-1).mean() / 8
    return conditional(
        abs(centred / 64 - 1) < 0.02 and abs(shifted / rule - 1) < 0.02,
        abs(shifted / 64 - 1) < 0.05,
        centred=centred,
        mean_half=shifted,
        rule=rule,
        self_score=own,
    )
