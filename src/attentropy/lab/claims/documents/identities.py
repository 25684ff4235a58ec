"""Identities (ID) that the library's kernels rest on."""

import numpy as np
from scipy.integrate import trapezoid

from attentropy.lab.claims.registry import ClaimResult, claim, holds_if
from attentropy.lab.claims.tools import derivative, gap, generator, normals
from attentropy.theory import bounds
from attentropy.theory import sparsity as populations
from attentropy.theory.entropy import (
    deficit,
    entropy,
    entropy_gradient,
    kl_from_uniform,
    log_collision,
    log_sparsity_gradient,
    logsumexp,
    merge_blocks,
    query_gradient,
    scale_derivative,
    softmax,
    sparsity,
    varentropy,
    varentropy_gradient,
)


def _rows(n: int = 20, rows: int = 100, seed: int = 0) -> np.ndarray:
    return 2 * generator(seed).normal(size=(rows, n))


@claim(
    "ID-1",
    "holds",
    "H = LSE - lam q.(PK)",
    "attention with V = K gives the entropy; it cancels when |LSE| is far above H",
)
def _() -> ClaimResult:
    q, k = normals(1, 8, (30, 8))
    s = 0.5 * k @ q
    value = logsumexp(s) - 0.5 * q @ (softmax(s) @ k)
    return holds_if(gap(value, entropy(s)) < 1e-12, gap=gap(value, entropy(s)))


@claim("ID-2", "holds", "H = log l - t/l", "with log1p of the other keys near one-hot")
def _() -> ClaimResult:
    s = _rows()
    d = s - s.max(-1, keepdims=True)
    l, t = np.exp(d).sum(-1), (d * np.exp(d)).sum(-1)
    row = np.array([30.0, 0.0])
    exact = np.log1p(np.exp(-30)) + 30 * np.exp(-30) / (1 + np.exp(-30))
    plain = np.log(1 + np.exp(-30)) + 30 * np.exp(-30)
    return holds_if(
        gap(np.log(l) - t / l, entropy(s)) < 1e-12 and abs(entropy(row) / exact - 1) < 1e-14,
        plain_relative_error=abs(plain / exact - 1),
        log1p_relative_error=abs(entropy(row) / exact - 1),
    )


@claim("ID-3", "holds", "log sum p^2 = LSE(2s) - 2 LSE(s)", "stable: log q - 2 log l")
def _() -> ClaimResult:
    s = _rows()
    error = gap(logsumexp(2 * s) - 2 * logsumexp(s), log_collision(s))
    return holds_if(error < 1e-12, gap=error)


@claim("ID-4", "holds", "S(p) = 1/sqrt(n sum p^2)", "decide whether n counts hidden keys")
def _() -> ClaimResult:
    s = _rows()
    p = softmax(s)
    error = gap(sparsity(s), p.mean(-1) / np.sqrt((p * p).mean(-1)))
    return holds_if(error < 1e-13, gap=error)


@claim("ID-5", "holds", "dH/ds_j = -p_j (log p_j + H)", "0 at hidden keys; sums to 0")
def _() -> ClaimResult:
    s = _rows(9, 1, 3)[0]
    g = entropy_gradient(s)
    numeric = derivative(entropy, s)
    return holds_if(
        gap(g, numeric) < 1e-8 and abs(g.sum()) < 1e-15, gap=gap(g, numeric), total=g.sum()
    )


@claim("ID-6", "holds", "dH/dlam = -lam Var_p(s)", "deficit = integral of t Var_t(s)")
def _() -> ClaimResult:
    s = _rows(12, 1, 4)[0]
    numeric = derivative(lambda x: entropy(x[0] * s), [1.3])[0]
    t = np.linspace(0, 1.3, 20001)
    area = trapezoid(-scale_derivative(s, t), t)
    error = abs(numeric - scale_derivative(s, 1.3))
    return holds_if(
        error < 1e-7 and abs(area - deficit(1.3 * s)) < 1e-6,
        gap=error,
        integral=area,
        deficit=deficit(1.3 * s),
    )


@claim("ID-7", "holds", "dH/dq = -lam^2 Cov_p(k) q", "new")
def _() -> ClaimResult:
    q, k = normals(5, 6, (15, 6))
    numeric = derivative(lambda x: entropy(0.7 * k @ x), q)
    return holds_if(
        gap(numeric, query_gradient(q, k, 0.7)) < 1e-8, gap=gap(numeric, query_gradient(q, k, 0.7))
    )


@claim("ID-8", "holds", "d log S/ds_j = p_j (1 - p_j/sum p^2)", "new")
def _() -> ClaimResult:
    s = _rows(8, 1, 7)[0]
    numeric = derivative(lambda x: np.log(sparsity(x)), s)
    return holds_if(
        gap(numeric, log_sparsity_gradient(s)) < 1e-8, gap=gap(numeric, log_sparsity_gradient(s))
    )


@claim(
    "ID-9",
    "holds",
    "lam (E_p[s] - mean s) = KL(p||u) + KL(u||p)",
    "so H >= log n - lam (E_p s - mean) >= log n - lam (s_max - mean)",
)
def _() -> ClaimResult:
    s = _rows()
    left = (softmax(s) * s).sum(-1) - s.mean(-1)
    right = deficit(s) + kl_from_uniform(s)
    return holds_if(
        gap(left, right) < 1e-12 and (entropy(s) >= np.log(20) - left - 1e-12).all(),
        gap=gap(left, right),
    )


@claim(
    "ID-10",
    "holds",
    "Row states merge exactly and associatively, with an identity",
    "rescale by e^(m_i - m); t gains (m_i - m) l_i",
)
def _() -> ClaimResult:
    s, v = _rows(30, 1, 8)[0], generator(9).normal(size=30)
    whole = merge_blocks([s], [v])
    cuts = merge_blocks([s[:7], [], [-np.inf], s[7:8], s[8:]], [v[:7], [], [1.0], v[7:8], v[8:]])
    back = merge_blocks([s[8:], s[:8]], [v[8:], v[:8]])
    extreme = merge_blocks([[1e30], [-1e30]], [[1.0], [2.0]])
    return holds_if(
        gap(whole, cuts) < 1e-12 and gap(whole, back) < 1e-12 and extreme[6] == 0,
        gap=max(gap(whole, cuts), gap(whole, back)),
    )


@claim("ID-11", "holds", "deficit <= D(R) <= R^2/8", "sharp as n grows")
def _() -> ClaimResult:
    s = generator(10).uniform(-1, 1, size=(3000, 15)) * np.logspace(-2, 1.5, 3000)[:, None]
    r = np.ptp(s, axis=-1)
    worst = (deficit(s) - bounds.worst_deficit(r)).max()
    quadratic = (bounds.worst_deficit(r) - bounds.quadratic_deficit(r)).max()
    near = bounds.worst_deficit(3.0) - (np.log(1e6) - bounds.min_entropy(1e6, 3.0))
    return holds_if(worst <= 1e-12 and quadratic <= 0 and near < 1e-6, slack=-worst, gap_n1e6=near)


@claim("ID-12", "holds", "H >= -log sum p^2", "Renyi entropies fall with their order")
def _() -> ClaimResult:
    s = _rows() * 2
    slack = entropy(s) + log_collision(s)
    return holds_if(slack.min() >= -1e-12, least_slack=slack.min())


@claim(
    "ID-13",
    "holds",
    "dH/dlog(scale) = -V, V = u/l - (t/l)^2, with u = sum z^2 e^z and z = s - max s",
    "the heat capacity of the row; a bias or a softcap adds terms",
)
def _() -> ClaimResult:
    s = _rows(15, 40, 9)
    z = s - s.max(-1, keepdims=True)
    l, t, u = ((z**k * np.exp(z)).sum(-1) for k in range(3))
    slopes = derivative(lambda x: entropy(x[0] * s).sum(), [1.0])[0]
    sums = gap(u / l - (t / l) ** 2, varentropy(s))
    return holds_if(
        sums < 1e-12 and abs(slopes + varentropy(s).sum()) < 1e-6,
        gap_of_sums=sums,
        gap_of_slopes=abs(slopes + varentropy(s).sum()),
    )


@claim(
    "ID-14",
    "holds",
    "dV/ds_j = p_j (y_j^2 + 2 y_j - V), y = log p + H",
    "sums to 0; 0 in uniform rows",
)
def _() -> ClaimResult:
    s = _rows(9, 1, 10)[0]
    g = varentropy_gradient(s)
    error = gap(g, derivative(varentropy, s))
    return holds_if(error < 1e-7 and abs(g.sum()) < 1e-14, gap=error, total=g.sum())


@claim(
    "ID-15",
    "holds",
    "S of relu^2 and identity weights does not depend on |q|",
    "both are homogeneous: S depends on beta/gamma only, so only exp reacts to scale",
)
def _() -> ClaimResult:
    c = np.array([1.0, 10.0, 100.0])
    relu, linear, soft = (
        f(-0.5 * c, c) for f in (populations.relu2, populations.identity, populations.exp)
    )
    return holds_if(
        gap(relu, relu[0]) < 1e-12 and gap(linear, linear[0]) < 1e-12 and soft[2] < 1e-3 * soft[0],
        relu2_x1=relu[0],
        relu2_x100=relu[2],
        identity_x1=linear[0],
        identity_x100=linear[2],
        exp_x1=soft[0],
        exp_x10=soft[1],
    )
