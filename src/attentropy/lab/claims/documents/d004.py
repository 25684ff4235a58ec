"""Document 004: scaled dot-product attention, masks, initialisation."""

import numpy as np

from attentropy.lab.claims.registry import ClaimResult, claim, conditional, holds_if, refuted
from attentropy.lab.claims.tools import attend, close, derivative, gap, generator, jacobian, normals
from attentropy.theory import init
from attentropy.theory.entropy import softmax
from attentropy.theory.init import attention_cost


@claim("004-(5.1.1)", "holds", "Scaled dot-product attention", "definition")
def _() -> ClaimResult:
    q, k, v = generator().normal(size=(3, 6, 4))
    out = softmax(q @ k.T / 2) @ v
    each = [sum(np.exp(a @ b / 2) * c for b, c in zip(k, v, strict=True)) for a in q]
    total = [sum(np.exp(a @ b / 2) for b in k) for a in q]
    error = gap(out, np.array(each) / np.array(total)[:, None])
    return holds_if(error < 1e-12, gap=error, largest=out.max())


@claim("004-§5.1.2", "holds", "For unit vectors the dot product is the cosine", "definition")
def _() -> ClaimResult:
    q, k = generator(1).normal(size=(2, 9))
    q, k = q / np.linalg.norm(q), k / np.linalg.norm(k)
    law = (2 - np.sum((q - k) ** 2)) / 2
    return holds_if(close(q @ k, law, 1e-13), dot=q @ k)


@claim(
    "004-(5.1.2)",
    "holds",
    "Q, K, V are linear projections of X",
    "W_O and biases are parameters too",
)
def _() -> ClaimResult:
    x, w = normals(2, (5, 8), (8, 4))
    return holds_if(gap((2 * x) @ w, 2 * (x @ w)) < 1e-12, rows=(x @ w).shape[0])


@claim(
    "004-§5.1.1",
    "false",
    "Separate query and key spaces give a highly nonlinear matching function",
    "the score is bilinear, x W_Q W_K^T y, of rank at most d_k",
)
def _() -> ClaimResult:
    rng = generator(4)
    w_q, w_k = rng.normal(size=(2, 16, 4))
    x, z, y = rng.normal(size=(3, 16))

    def score(a: np.ndarray, b: np.ndarray) -> float:
        return float((a @ w_q) @ (b @ w_k))

    nonlinear = abs(score(x + 2 * z, y) - score(x, y) - 2 * score(z, y))
    rank = np.linalg.matrix_rank(w_q @ w_k.T)
    spectrum = init.score_matrix_spectrum(w_q, w_k)
    full = np.linalg.svd(w_q @ w_k.T, compute_uv=False)[:4]
    return refuted(
        nonlinear > 1e-6,
        rank <= 4 and close(spectrum, full, 1e-9),
        additivity_error=nonlinear,
        rank=rank,
    )


@claim("004-§5.1.3", "holds", "d_k = d_model: 3 d^2 parameters", "without biases and W_O")
def _() -> ClaimResult:
    d = 64
    widths = dict.fromkeys("qkv", d)
    parameters = sum(d * width for width in widths.values())
    return holds_if(parameters == 3 * d**2, parameters=parameters)


def _compressed(rank: int, kept: int) -> tuple[float, float]:
    """Errors of a score x M y learned from noisy samples: as fitted, and cut to rank `kept`."""
    rng = generator(18)
    m = rng.normal(size=(12, rank)) @ rng.normal(size=(rank, 12)) / np.sqrt(rank)
    x, y = rng.normal(size=(2, 220, 12))
    seen = np.einsum("ni,ij,nj->n", x, m, y) + 3 * rng.normal(size=220)
    pairs = np.einsum("ni,nj->nij", x, y).reshape(220, -1)
    fitted = np.linalg.lstsq(pairs, seen, rcond=None)[0].reshape(12, 12)
    u, s, vt = np.linalg.svd(fitted)
    cut = u[:, :kept] * s[:kept] @ vt[:kept]
    whole, low = (float(np.sqrt(((found - m) ** 2).mean())) for found in (fitted, cut))
    return whole, low


@claim(
    "004-§5.1.3b",
    "cond",
    "Projecting to d_k < d_model may be a helpful regularisation",
    "it bounds the rank of the score: less error from noisy samples where the truth has low rank, "
    "more where it has not",
)
def _() -> ClaimResult:
    low, full = _compressed(2, 2), _compressed(12, 2)
    return conditional(
        low[1] < 0.8 * low[0],
        full[1] < full[0],
        low_rank_fitted=low[0],
        low_rank_compressed=low[1],
        full_rank_fitted=full[0],
        full_rank_compressed=full[1],
    )


@claim("004-(5.1.3)", "holds", "(Q K^T)_ij is the sum of q_im k_jm", "definition")
def _() -> ClaimResult:
    q, k = generator(5).normal(size=(2, 5, 7))
    return holds_if(
        gap(q @ k.T, np.einsum("im,jm->ij", q, k)) < 1e-13,
        gap=gap(q @ k.T, np.einsum("im,jm->ij", q, k)),
    )


@claim("004-(5.1.4)", "cond", "E[q_m k_m] = 0", "independent and centred")
def _() -> ClaimResult:
    q, k = generator(6).normal(size=(2, 400000))
    free, tied = (q * k).mean(), (q * q).mean()
    return conditional(abs(free) < 0.01, abs(tied) < 0.01, independent=free, equal=tied)


@claim("004-(5.1.5)", "cond", "Var(q.k) = d_k sigma^4", "as 000-(65)")
def _() -> ClaimResult:
    q, k = 1.5 * generator(7).normal(size=(2, 100000, 16))
    free, tied = (q * k).sum(-1).var(), (q * q).sum(-1).var()
    rule = init.score_variance(16, 1.5, scale=1.0)
    return conditional(
        abs(free / rule - 1) < 0.03,
        abs(tied / rule - 1) < 0.2,
        independent=free,
        rule=rule,
        equal=tied,
    )


@claim(
    "004-§5.1.4",
    "cond",
    "After scaling the variance is sigma^4 whatever d_k, so inputs stay reasonable",
    "reasonable only for sigma = O(1)",
)
def _() -> ClaimResult:
    q, k = generator(8).normal(size=(2, 20000, 64))
    scaled, wide = ((q * k).sum(-1) / 8).var(), ((9 * q * k).sum(-1) / 8).var()
    return conditional(abs(scaled - 1) < 0.05, wide < 10, sigma_1=scaled, sigma_3=wide)


@claim(
    "004-§5.1.5a",
    "cond",
    "Inputs of large magnitude harden the softmax",
    "large differences do; a large common level does nothing, as 000-B.4",
)
def _() -> ClaimResult:
    s = generator(9).normal(size=8)
    level, spread = softmax(s + 1e6), softmax(1e4 * s)
    return conditional(
        spread.max() > 0.99 and gap(level, softmax(s)) < 1e-8,
        level.max() > 0.99,
        top_before=softmax(s).max(),
        top_after_level=level.max(),
        top_after_factor=spread.max(),
    )


@claim(
    "004-§5.1.5b",
    "false",
    "Adding a large constant to all inputs drives softmax to one-hot",
    "it changes nothing; multiplying does. In floats a huge constant even makes it uniform",
)
def _() -> ClaimResult:
    s = np.array([1.0, 2.0, 3.0], np.float32)
    added = softmax(s.astype(float) + 1e5)
    rounded = (s + np.float32(1e8)) - np.float32(1e8)
    uniform, factor = softmax(rounded), softmax(1e3 * s)
    return refuted(
        added.max() > 0.99 or uniform.max() > 0.99,
        gap(added, softmax(s)) < 1e-9 and close(uniform, 1 / 3) and factor.max() > 0.999,
        added_top=added.max(),
        fp32_top=uniform.max(),
        multiplied_top=factor.max(),
    )


@claim("004-(5.1.6)", "holds", "Softmax definition", "definition")
def _() -> ClaimResult:
    s = generator(10).normal(size=9)
    return holds_if(
        gap(softmax(s), np.exp(s) / np.exp(s).sum()) < 1e-15,
        gap=gap(softmax(s), np.exp(s) / np.exp(s).sum()),
    )


@claim("004-(5.1.7)", "holds", "The output is the mean of v_j under the weights", "definition")
def _() -> ClaimResult:
    s, v = normals(11, 5, 5)
    draws = generator(13).choice(5, size=400000, p=softmax(s))
    return holds_if(
        abs(v[draws].mean() - attend(s, v)) < 0.01, sampled=v[draws].mean(), exact=attend(s, v)
    )


@claim(
    "004-(5.1.8)", "holds", "Softmax Jacobian y_i (1 - y_i), -y_i y_j", "J 1 = 0 and 0 <= J <= I/2"
)
def _() -> ClaimResult:
    s = generator(14).normal(size=7)
    j = jacobian(softmax(s))
    numeric = derivative(softmax, s)
    eigen = np.linalg.eigvalsh(j)
    return holds_if(
        gap(j, numeric) < 1e-9 and eigen.min() > -1e-14 and eigen.max() <= 0.5,
        gap=gap(j, numeric),
        largest_eigenvalue=eigen.max(),
    )


@claim("004-§5.1.5c", "holds", "y_i near 1 makes every entry vanish", "max|J| <= 1 - y_max")
def _() -> ClaimResult:
    p = softmax([12.0, 0.0, 1.0])
    return holds_if(
        np.abs(jacobian(p)).max() <= 1 - p.max() + 1e-16,
        largest=np.abs(jacobian(p)).max(),
        bound=1 - p.max(),
    )


@claim(
    "004-§5.1.6a",
    "cond",
    "O(n^2 d) time and O(n^2) memory",
    "plus O(n d^2) projections, which dominate for n < 2d; O(n) memory in blocks",
)
def _() -> ClaimResult:
    long = attention_cost("dense", n=65536, d_model=512)
    short = attention_cost("dense", n=128, d_model=512)
    flash = attention_cost("flash", n=65536, d_model=512)
    return conditional(
        long.mixing > long.projections and long.kept == 65536**2,
        short.mixing > short.projections and flash.kept >= long.kept,
        mixing_share_long=long.mixing / long.total,
        mixing_share_short=short.mixing / short.total,
        flash_kept_over_dense=flash.kept / long.kept,
    )


def _causal(n: int) -> np.ndarray:
    return np.where(np.tril(np.ones((n, n), bool)), 0.0, -np.inf)


@claim("004-(5.1.9),(5.1.10)", "holds", "Causal mask: 0 for j <= i, -inf above", "definition")
def _() -> ClaimResult:
    p = softmax(generator(15).normal(size=(6, 6)) + _causal(6))
    return holds_if(np.triu(p, 1).sum() == 0 and close(p.sum(-1), 1), future=np.triu(p, 1).sum())


@claim(
    "004-§5.1.7a",
    "false",
    "The mask M is a lower-triangular matrix",
    "its upper triangle is -inf; the attention matrix becomes lower triangular",
)
def _() -> ClaimResult:
    m = _causal(6)
    p = softmax(generator(16).normal(size=(6, 6)) + m)
    above = np.triu_indices(6, 1)
    return refuted(
        (m[above] == 0).all(),
        np.isneginf(m[above]).all() and (p[above] == 0).all(),
        mask_above=m[above][0],
        map_above=p[above].max(),
    )


@claim(
    "004-§5.1.7b",
    "cond",
    "Position t may use 1 ... t-1 only",
    "the mask allows j <= i; consistent because row i predicts token i+1",
)
def _() -> ClaimResult:
    p = softmax(np.zeros((5, 5)) + _causal(5))
    predicts = [np.flatnonzero(p[i]).max() < i + 1 for i in range(5)]
    return conditional(all(predicts), np.diag(p).max() == 0, own_weight=np.diag(p).max())


@claim(
    "004-§5.1.7c",
    "cond",
    "Use -1e9 instead of -inf to avoid numerical problems",
    "not in half precision, and a fully hidden row then attends to hidden keys; fp32 loses s",
)
def _() -> ClaimResult:
    s = generator(17).normal(size=4).astype(np.float32)
    normal = softmax(np.array([s[0], s[1], s[2] - 1e9, s[3] - 1e9], float))
    hidden = softmax((s + np.float32(-1e9)).astype(float))
    return conditional(
        normal[2:].sum() == 0,
        np.isfinite(np.float16(-1e9)) and hidden.sum() == 0,
        hidden_row_mass=hidden.sum(),
        lost_differences=np.ptp((s + np.float32(-1e9)).astype(float)),
    )


@claim(
    "004-(5.1.11)",
    "holds",
    "Padding masks add to the causal one",
    "-inf + -inf is fine, never +inf",
)
def _() -> ClaimResult:
    pad = np.where(np.arange(6) < 4, 0.0, -np.inf)
    p = softmax(generator(18).normal(size=(6, 6)) + _causal(6) + pad)
    return holds_if(
        p[:, 4:].sum() == 0 and close(p.sum(-1), 1) and not np.isnan(p).any(),
        padded_mass=p[:, 4:].sum(),
    )


@claim(
    "004-§5.1.8a",
    "false",
    "x W with W = U S V^T applies V^T first, then S, then U",
    "row vectors meet U first and V^T last; the order given is that of W x",
)
def _() -> ClaimResult:
    w, x = normals(19, (5, 5), 5)
    u, s, vt = np.linalg.svd(w)
    claimed, right = ((x @ vt) * s) @ u, ((x @ u) * s) @ vt
    return refuted(
        close(claimed, x @ w, 1e-6),
        close(right, x @ w, 1e-12),
        claimed_gap=gap(claimed, x @ w),
        corrected_gap=gap(right, x @ w),
    )


@claim("004-§5.1.8b", "holds", "Xavier variance 2/(d_in + d_out)", "definition")
def _() -> ClaimResult:
    limit = np.sqrt(6 / (512 + 64))
    w = generator(21).uniform(-limit, limit, size=(512, 64))
    rule = init.weight_variance("xavier", 512, 64)
    return holds_if(abs(w.var() / rule - 1) < 0.02, measured=w.var(), rule=rule)


@claim(
    "004-§5.1.8c",
    "cond",
    "So neither signals nor gradients are amplified or damped",
    "only for d_in = d_out; 512 -> 64: forward 1.78, backward 0.22, score variance 3.16",
)
def _() -> ClaimResult:
    rng = generator(22)
    gains = init.xavier_gain(512, 64)
    w_q, w_k = rng.normal(size=(2, 512, 64)) * np.sqrt(2 / 576)
    x, y, g = (
        rng.normal(size=(4000, 512)),
        rng.normal(size=(4000, 512)),
        rng.normal(size=(4000, 64)),
    )
    forward, backward = (x @ w_q).var(), (g @ w_q.T).var()
    scores = (((x @ w_q) * (y @ w_k)).sum(-1) / 8).var()
    measured = (forward / gains.forward, backward / gains.backward)
    return conditional(
        init.xavier_gain(512, 512) == (1, 1, 1)
        and close(measured, 1, 0.05)
        and abs(scores / gains.score - 1) < 0.2,
        abs(forward - 1) < 0.1 and abs(backward - 1) < 0.1,
        forward=forward,
        backward=backward,
        score_variance=scores,
    )


@claim(
    "004-§5.1.8d",
    "cond",
    "dL/dW_Q = dL/dO dO/dQ X^T",
    "as matrices X^T (dL/dQ): X^T multiplies from the left",
)
def _() -> ClaimResult:
    rng = generator(23)
    x, w, g = rng.normal(size=(6, 4)), rng.normal(size=(4, 4)), rng.normal(size=(6, 4))
    numeric = derivative(lambda flat: (x @ flat.reshape(4, 4) * g).sum(), w.ravel()).reshape(4, 4)
    left = x.T @ g
    fits = g.shape[1] == x.T.shape[0]  # whether dL/dQ @ X^T has the shape of W at all
    return conditional(
        gap(left, numeric) < 1e-7,
        fits and (g @ x.T).shape == w.shape,
        left_gap=gap(left, numeric),
        right_rows=(g @ x.T).shape[0],
    )


@claim(
    "004-§5.1.8e",
    "false",
    "Gradients flow stably whatever the depth or sequence length",
    "|do/dq| falls like n_eff^(-1/2)",
)
def _() -> ClaimResult:
    rng = generator(24)
    sizes, n_list = [], (16, 256, 2048)
    for n in n_list:
        norms = []
        for _ in range(8):
            k, v, q = rng.normal(size=(n, 64)), rng.normal(size=(n, 64)), rng.normal(size=64)
            p = softmax(k @ q / 8)
            norms.append(np.linalg.norm((p[:, None] * (v - p @ v)).T @ k / 8))
        sizes.append(np.mean(norms))
    slope = np.polyfit(np.log(n_list), np.log(sizes), 1)[0]
    return refuted(
        sizes[2] > 0.8 * sizes[0],
        abs(slope + 0.5) < 0.12,
        n16=sizes[0],
        n256=sizes[1],
        n2048=sizes[2],
        slope=slope,
    )


@claim(
    "004-§5.1.9",
    "cond",
    "Scaling keeps softmax out of saturation",
    "at initialisation with sigma = O(1)",
)
def _() -> ClaimResult:
    rng = generator(25)
    q, k = rng.normal(size=(2, 64, 256))
    p, sharp = softmax(q @ k.T / 16), softmax(25 * q @ k.T / 16)
    return conditional(
        p.max(-1).mean() < 0.3,
        sharp.max(-1).mean() < 0.3,
        sigma_1=p.max(-1).mean(),
        sigma_5=sharp.max(-1).mean(),
    )
