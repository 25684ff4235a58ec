"""Document 001, third part: norms, positions, masks, heads, and the code."""

from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from attentropy.lab.claims.registry import (
    ClaimResult,
    approximate,
    claim,
    conditional,
    holds_if,
    refuted,
)
from attentropy.lab.claims.tools import close, gap, generator, normals, products, sinusoid
from attentropy.theory import gaussian
from attentropy.theory.cost import attention_cost
from attentropy.theory.entropy import entropy, scale_derivative, softmax


def _layer_norm(x: np.ndarray, eps: float = 0.0) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)


@claim("001-(43)–(45)", "holds", "LayerNorm and RMSNorm formulas", "plus a small eps in the root")
def _() -> ClaimResult:
    x = 3 + 5 * generator().normal(size=(100, 64))
    y = _layer_norm(x)
    rms = x / np.sqrt((x * x).mean(-1, keepdims=True))
    return holds_if(
        gap(y.mean(-1), 0) < 1e-12
        and gap(y.var(-1), 1) < 1e-12
        and gap((rms**2).mean(-1), 1) < 1e-12,
        mean=gap(y.mean(-1), 0),
        variance=y.var(-1).mean(),
    )


@claim(
    "001-§16",
    "cond",
    "LayerNorm partly achieves entropy invariance",
    "it fixes the norms, hence the spread; nothing about n",
)
def _() -> ClaimResult:
    rng = generator(1)
    q = _layer_norm(rng.normal(size=(50, 64)))
    h = {}
    for n, size in ((256, 1.0), (256, 10.0), (8192, 1.0)):
        k = _layer_norm(size * rng.normal(size=(n, 64)))
        h[n, size] = entropy(q @ k.T / 8).mean()
    return conditional(
        abs(h[256, 1.0] - h[256, 10.0]) < 0.05,
        abs(h[256, 1.0] - h[8192, 1.0]) < 0.5,
        small_inputs=h[256, 1.0],
        large_inputs=h[256, 10.0],
        more_keys=h[8192, 1.0],
    )


class _Counted:
    """A vector that counts the operations on its numbers; a mean of d numbers counts d."""

    def __init__(self, x: np.ndarray, done: list[int]) -> None:
        self.x, self.done = x, done

    def _with(self, x: np.ndarray) -> "_Counted":
        self.done.append(self.x.size)
        return _Counted(x, self.done)

    def __sub__(self, other: float) -> "_Counted":
        return self._with(self.x - other)

    def __mul__(self, other: "_Counted | float") -> "_Counted":
        return self._with(self.x * (other.x if isinstance(other, _Counted) else other))

    def mean(self) -> float:
        self.done.append(self.x.size)
        return float(self.x.mean())


def _layer_steps(x: _Counted) -> _Counted:
    centred = x - x.mean()
    return centred * (centred * centred).mean() ** -0.5


def _rms_steps(x: _Counted) -> _Counted:
    return x * (x * x).mean() ** -0.5


@claim(
    "001-§16b",
    "cond",
    "RMSNorm is simpler and faster than LayerNorm, with a similar effect",
    "3 d operations against 5 d (counted, not timed: a fused kernel waits for memory). Similar "
    "where inputs are centred; a common mean stays in, and all cosines grow",
)
def _() -> ClaimResult:
    counts = {}
    for norm in (_layer_steps, _rms_steps):
        done: list[int] = []
        norm(_Counted(generator(1).normal(size=64), done))
        counts[norm] = sum(done) / 64
    h = {}
    for mean in (0.0, 3.0):
        x = mean + generator(2).normal(size=(64, 64))
        for norm in (_layer_steps, _rms_steps):
            y = np.array([norm(_Counted(row, [])).x for row in x])
            h[mean, norm] = entropy(y[:8] @ y[8:].T / 8).mean()
    centred, shifted = (h[m, _rms_steps] - h[m, _layer_steps] for m in (0.0, 3.0))
    return conditional(
        counts[_rms_steps] < counts[_layer_steps] and abs(centred) < 0.05,
        abs(shifted) < 0.05,
        operations_rms=counts[_rms_steps],
        operations_layer=counts[_layer_steps],
        entropy_gap_centred=centred,
        entropy_gap_mean_3=shifted,
    )


@claim("001-(46)", "holds", "Dynamic scale kappa log n/d", "per row it folds into q")
def _() -> ClaimResult:
    q, k = normals(2, (6, 16), (40, 16))
    lam = np.log(np.arange(2, 8))[:, None] / 16
    error = gap(softmax(lam * (q @ k.T)), softmax((lam * q) @ k.T))
    return holds_if(error < 1e-14, gap=error)


@claim(
    "001-§17",
    "cond",
    "As a compromise use the constant kappa log n_max/d",
    "just a constant: at n = n_max it is the rule, elsewhere it does not adapt",
)
def _() -> ClaimResult:
    n_max, spread = 4096, 1.0
    at_max = gaussian.expected_entropy(n_max, spread)
    rule = gaussian.expected_entropy(256, spread * np.log(256) / np.log(n_max))
    fixed = gaussian.expected_entropy(256, spread)
    return conditional(
        close(at_max, gaussian.expected_entropy(n_max, spread * np.log(n_max) / np.log(n_max))),
        abs(fixed - rule) < 0.05,
        rule_n256=rule,
        constant_n256=fixed,
    )


@claim(
    "001-§17b",
    "holds",
    "The dynamic scale costs a little more computation",
    "a logarithm for each row and a product for each number of q: (1 + 1/d)/(4 n) of the mixing, "
    "1.6 % at n = 16 and 0.02 % at n = 1024",
)
def _() -> ClaimResult:
    share = {n: (n + n * 64) / attention_cost("dense", n=n, d_model=64).mixing for n in (16, 1024)}
    return holds_if(
        0 < share[1024] < share[16] < 0.02, share_n16=share[16], share_n1024=share[1024]
    )


@claim(
    "001-(47)",
    "holds",
    "Positions added to the inputs change the scores, and with them the entropy",
    "sinusoids of squared norm d/2 prefer near keys and lower H at unit queries and keys",
)
def _() -> ClaimResult:
    p = sinusoid(np.arange(200.0), 128)
    q, k = normals(3, (200, 128), (200, 128))
    plain, placed = (a @ b.T / np.sqrt(128) for a, b in ((q, k), (q + p, k + p)))
    added = placed - plain
    near, far = np.diag(added, 1).mean(), np.diag(added, 100).mean()
    h = entropy(plain).mean(), entropy(placed).mean()
    return holds_if(
        near - far > 1 and h[1] < h[0] - 0.1,
        H_without=h[0],
        H_with=h[1],
        added_at_distance_1=near,
        added_at_distance_100=far,
    )


@claim(
    "001-(48)",
    "cond",
    "Sinusoidal positions: near inner products large, far ones small",
    "as a trend, not monotone: it is larger at distance 12 than at 11 (d = 128)",
)
def _() -> ClaimResult:
    p = sinusoid(np.arange(200.0), 128)
    dot = p @ p[0]
    rise = int(np.argmax(np.diff(dot) > 0)) + 1
    return conditional(
        dot[0] > dot[5] > dot[10] and dot[:20].mean() > dot[100:].mean(),
        (np.diff(dot) <= 0).all(),
        at_0=dot[0],
        at_10=dot[10],
        first_rise_at=rise,
    )


def _distance(p: np.ndarray) -> float:
    """Mean distance from a query to what it attends to."""
    at = np.arange(p.shape[-1])
    return float((p * np.abs(at[:, None] - at)).sum(-1).mean())


@claim(
    "001-§18",
    "holds",
    "Sinusoidal positions draw attention to near tokens and H may fall; kappa can make up for it",
    "for positions as large as the content; a factor below 1 on all logits gives H back",
)
def _() -> ClaimResult:
    p = sinusoid(np.arange(200.0), 128)
    q, k = normals(3, (200, 128), (200, 128))
    plain, placed = (a @ b.T / np.sqrt(128) for a, b in ((q, k), (q + p, k + p)))
    wanted = entropy(plain).mean()
    factor = brentq(lambda c: entropy(c * placed).mean() - wanted, 0.1, 1.0)
    near = _distance(softmax(placed)), _distance(softmax(plain))
    return holds_if(
        near[0] < near[1] - 1 and entropy(placed).mean() < wanted - 0.1 and 0.1 < factor < 0.95,
        distance_with=near[0],
        distance_without=near[1],
        H_with=entropy(placed).mean(),
        H_without=wanted,
        factor_on_kappa=factor,
    )


@claim(
    "001-(49)–(51)",
    "holds",
    "Masked rows: H <= log|S_i| and scale kappa log|S_i|/d",
    "|S_i| = 1 gives scale 0, harmless; |S_i| = 0 leaves the row undefined",
)
def _() -> ClaimResult:
    s = generator(4).normal(size=(12, 12))
    mask = np.tril(np.ones((12, 12), bool))
    h = entropy(np.where(mask, s, -np.inf))
    slack = np.log(mask.sum(-1)) - h
    return holds_if(slack.min() >= -1e-12 and h[0] == 0, least_slack=slack.min(), first_row=h[0])


@claim("001-(52),(53)", "holds", "Cross-attention uses the number of keys n_k", "the code uses n_q")
def _() -> ClaimResult:
    q, k = normals(5, (3, 8), (50, 8))
    h = entropy(q @ k.T / 3)
    return holds_if(
        np.log(3) < h.max() <= np.log(50), largest=h.max(), log_nq=np.log(3), log_nk=np.log(50)
    )


@claim("001-(54)–(56)", "holds", "Per head lam = kappa log n/d_head = kappa h log n/d", "algebra")
def _() -> ClaimResult:
    d, h, n = 512, 8, 1000
    return holds_if(close(np.log(n) / (d / h), h * np.log(n) / d), scale=np.log(n) * h / d)


@claim(
    "001-§21",
    "holds",
    "So multi-head attention uses an h times larger scale",
    "the factor is h times larger; the head's score has h times fewer terms, so the spread of "
    "the logits grows by sqrt h only",
)
def _() -> ClaimResult:
    import torch

    from attentropy.core.scales import LogLength

    rng, heads, n = generator(7), 8, torch.tensor(256)
    factor = [float(LogLength()(width, n)) for width in (512, 512 // heads)]
    spread = [
        scale * products(rng, 4000, d).std() for scale, d in zip(factor, (512, 64), strict=True)
    ]
    return holds_if(
        close(factor[1] / factor[0], heads, 1e-6)
        and abs(spread[1] / spread[0] - np.sqrt(heads)) < 0.2,
        factor_ratio=factor[1] / factor[0],
        spread_ratio=spread[1] / spread[0],
    )


@claim(
    "001-§22",
    "cond",
    "Flash attention needs only another scale",
    "for one scalar; a scale per row must be folded into q",
)
def _() -> ClaimResult:
    q, k = normals(8, (5, 8), (20, 8))
    rows = np.log(np.arange(2, 7))[:, None]
    folded = gap(softmax((rows * q) @ k.T), softmax(rows * (q @ k.T)))
    scalar = gap(softmax(rows.mean() * (q @ k.T)), softmax(rows * (q @ k.T)))
    return conditional(folded < 1e-13, scalar < 1e-3, folded_gap=folded, one_scalar_gap=scalar)


@claim("001-(57),(58)", "holds", "10 log 2/64 = 0.108 is close to 1/sqrt 64 = 0.125", "13 % apart")
def _() -> ClaimResult:
    a, b = 10 * np.log(2) / 64, 1 / 8
    return holds_if(abs(a - 0.108) < 5e-4 and abs(a / b - 1) < 0.15, log_scale=a, root_scale=b)


@claim(
    "001-(59)",
    "false",
    "log n/d is about 1/sqrt d for common n and d",
    "equal only at n = e^sqrt(d): 286, 2981, 8.2e4 for d = 32, 64, 128; the ratio "
    "spans 0.21 to 2.44",
)
def _() -> ClaimResult:
    d, n = np.array([32.0, 64, 128, 256, 512]), np.array([128.0, 1e6])
    ratio = np.log(n) / np.sqrt(d[:, None])
    even = np.log(np.exp(np.sqrt(d))) / d * np.sqrt(d)
    return refuted(
        ratio.min() > 0.8 and ratio.max() < 1.25,
        close(even, 1) and round(np.exp(np.sqrt(64))) == 2981,
        least=ratio.min(),
        most=ratio.max(),
        n_equal_d64=np.exp(8),
    )


@claim("001-(60)", "holds", "Mixed scale 1/sqrt d + beta log n/d", "definition")
def _() -> ClaimResult:
    scale = 1 / 8 + 0.1 * np.log(1000) / 64
    return holds_if(scale > 1 / 8, scale=scale)


@claim(
    "001-§23",
    "cond",
    "lam = log n/d may become too peaked for large n",
    "at a small d: d = 8, n = 1e6 loses 9.4 of 13.8 nats. At d = 64 it loses 1.5, and it freezes "
    "only at log n = 2d",
)
def _() -> ClaimResult:
    lost = {d: gaussian.expected_deficit(10**6, np.log(1e6) / np.sqrt(d)) for d in (8, 64)}
    half = 0.5 * np.log(1e6)
    return conditional(
        lost[8] > half,
        lost[64] > half,
        deficit_d8=lost[8],
        deficit_d64=lost[64],
        log_n=2 * half,
    )


@claim("001-§24", "approx", "log 10^6 is about 14", "13.8155")
def _() -> ClaimResult:
    return approximate(14 - np.log(1e6), 0.2, exact=np.log(1e6))


def _iterate(update: Callable[..., float], start: float, steps: int) -> list[float]:
    s = generator(10).normal(size=512)
    lam, path = start, []
    for _ in range(steps):
        h = entropy(lam * s)
        path.append(h)
        lam = float(np.clip(update(lam, h, s), 1e-9, 1e6))
    return path


@claim(
    "001-(61)",
    "false",
    "Adapt the scale by lam <- lam H_target/H",
    "wrong direction: dH/dlam = -lam Var <= 0, so H above target needs a larger lam. "
    "Use lam H/H_target, "
    "lam sqrt((log n - H_t)/(log n - H)) or Newton",
)
def _() -> ClaimResult:
    target, log_n = 4.0, np.log(512)
    wrong = [
        _iterate(lambda lam, h, s: lam * target / max(h, 1e-9), start, 40)[-1]
        for start in (1.0, 4.0)
    ]
    right = _iterate(lambda lam, h, s: lam * h / target, 1.0, 60)[-1]
    root = _iterate(lambda lam, h, s: lam * np.sqrt((log_n - target) / (log_n - h)), 1.0, 30)[-1]
    newton = _iterate(lambda lam, h, s: lam - (h - target) / scale_derivative(s, lam), 1.0, 30)[-1]
    s = generator(10).normal(size=512)
    return refuted(
        min(abs(w - target) for w in wrong) < 0.5,
        max(abs(h - target) for h in (right, root, newton)) < 1e-3 and scale_derivative(s, 1.0) < 0,
        rule_from_1=wrong[0],
        rule_from_4=wrong[1],
        inverse_rule=right,
        root_rule=root,
        newton=newton,
    )


@claim("001-(62),(63)", "holds", "Temperature T = d/(kappa log n)", "definition")
def _() -> ClaimResult:
    s = generator(11).normal(size=30)
    lam = np.log(30) / 16
    error = gap(softmax(lam * s), softmax(s / (16 / np.log(30))))
    return holds_if(error < 1e-14, gap=error)


@claim(
    "001-§25",
    "holds",
    "lam = 1/T is the scale factor, the reciprocal of the temperature",
    "the sentence writes the reciprocal of the scale factor (缩放因子的倒数), a slip of the pen: "
    "the factor is lam itself, as everywhere else in the document; read literally, weights differ",
)
def _() -> ClaimResult:
    s, temperature = generator(12).normal(size=30), 4.0
    lam = 1 / temperature
    wanted = softmax(s / temperature)
    as_written, as_meant = gap(softmax(s * (1 / lam)), wanted), gap(softmax(s * lam), wanted)
    return holds_if(
        as_meant < 1e-14 and as_written > 1e-6, gap_as_written=as_written, gap_as_meant=as_meant
    )


def _listing(x_q: np.ndarray, x_k: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """The forward pass as printed, with identity projections, two heads and values of the keys."""
    batch, n, width = x_q.shape
    q, k = (x.reshape(batch, n, 2, width // 2).swapaxes(1, 2) for x in (x_q, x_k))
    scores = q @ k.swapaxes(-2, -1) * (np.log(n) / (width // 2))
    if mask is not None:
        scores = np.where(mask == 0, -1e9, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = weights / weights.sum(-1, keepdims=True) @ k
    return np.asarray(out.swapaxes(1, 2).reshape(batch, n, width))


@claim(
    "001-§29",
    "cond",
    "The module as printed computes the proposed attention",
    "it does for self-attention without a mask, as in its own example. It reshapes K and V by n_q "
    "(cross-attention fails), takes log of the full length under a mask, and -1e9 makes a hidden "
    "row attend everywhere; use n_k, log|S_i| and -inf",
)
def _() -> ClaimResult:
    x, other = normals(13, (2, 9, 8), (2, 7, 8))
    heads = x.reshape(2, 9, 2, 4).swapaxes(1, 2)
    boxed = softmax(np.log(9) / 4 * heads @ heads.swapaxes(-2, -1)) @ heads
    own = gap(_listing(x, x), boxed.swapaxes(1, 2).reshape(2, 9, 8))
    try:
        _listing(x, other)
        crosses = True
    except ValueError:
        crosses = False
    hidden = _listing(x, x, np.zeros((9, 9)))
    return conditional(
        own < 1e-12,
        crosses and gap(hidden, 0) < 1e-6,
        gap_on_its_example=own,
        cross_attention_runs=crosses,
        output_of_hidden_rows=np.abs(hidden).max(),
        gap_of_hidden_rows_to_the_mean=gap(
            hidden, np.broadcast_to(x.mean(1, keepdims=True), x.shape)
        ),
    )


@claim(
    "001-§30.4",
    "false",
    "Dividing by d keeps the score variance stable",
    "dividing by sqrt d does; by d the variance is sigma^4/d -> 0",
)
def _() -> ClaimResult:
    rng = generator(15)
    variance = {}
    for d in (16, 256):
        s = products(rng, 20000, d)
        variance[d] = (s / d).var(), (s / np.sqrt(d)).var()
    return refuted(
        abs(variance[256][0] / variance[16][0] - 1) < 0.2,
        abs(variance[256][1] / variance[16][1] - 1) < 0.1 and abs(variance[256][0] * 256 - 1) < 0.1,
        by_d_16=variance[16][0],
        by_d_256=variance[256][0],
        by_root_16=variance[16][1],
        by_root_256=variance[256][1],
    )
