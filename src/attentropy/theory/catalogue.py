"""Names -> formulas that can be called: `CATALOGUE["S_relu2"](beta=-1.0, gamma=2.0)`.

Entries take keywords only; numbers may be given as text ("inf"), vectors as lists. They answer
with floats and lists, so that an answer can be written as JSON. Divergent quantities are inf.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from types import MappingProxyType
from typing import Any

import numpy as np

from attentropy.core.errors import ArgumentError
from attentropy.theory import bounds, entropy, gaussian, init, noise, sparsity
from attentropy.theory._arrays import above, floats


@dataclass(frozen=True)
class Formula:
    """A formula as text, its source document and domain, and the function that evaluates it.

    `inputs` are the keywords, in the order in which the function takes them.
    """

    name: str
    inputs: tuple[str, ...]
    function: Callable[..., Any]
    formula: str
    source: str
    domain: str

    def __call__(self, **inputs: Any) -> Any:
        """Evaluate; unknown or missing keywords are refused."""
        if set(inputs) != set(self.inputs):
            given = ", ".join(inputs) or "nothing"
            raise ArgumentError(
                f"inputs of {self.name}", f"exactly {', '.join(self.inputs)}", given
            )
        arguments = [_number(name, inputs[name]) for name in self.inputs]
        try:
            return _answer(self.function(*arguments))
        except ArgumentError as error:
            raise self._renamed(error) from None

    def _renamed(self, error: ArgumentError) -> Exception:
        """The same complaint, about the keyword of this entry instead of the function's own."""
        own = [name.rstrip("_") for name in signature(self.function).parameters]
        text = str(error)
        for theirs, name in zip(own, self.inputs, strict=False):
            if text.startswith(f"{theirs} must be "):
                rule, _, value = text.removeprefix(f"{theirs} must be ").partition(", got ")
                return ArgumentError(name, rule, value)
        return error


def _number(name: str, value: Any) -> Any:
    """Text becomes a number where a number is meant; containers are opened."""
    if isinstance(value, list | tuple):
        return [_number(name, part) for part in value]
    if isinstance(value, str) and name != "kind":
        try:
            return float(value)
        except ValueError:
            raise ArgumentError(name, "a number", value) from None
    if isinstance(value, complex):
        raise ArgumentError(name, "a real number", value)
    return value


def _answer(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_answer(part) for part in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _at_tau(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of the score range as one of the temperature of cosine scores."""

    def of_temperature(tau: Any) -> Any:
        temperature = floats("tau", tau)
        above("tau", temperature, 0)
        return function(2 / temperature)

    return of_temperature


def _min_entropy_at(n: Any, tau: Any) -> Any:
    return _at_tau(lambda range_: bounds.min_entropy_split(n, range_))(tau)


_PLANE = "beta finite, gamma >= 0"
_ROW = "scores < +inf; -inf hides a key"
_SPREAD = "n >= 1, x >= 0"
_TABLE: list[tuple[str, str, Callable[..., Any], str, str, str]] = [
    ("S_exp", "beta gamma", sparsity.exp, "exp(-gamma^2/2)", "002", _PLANE),
    ("log_S_exp", "beta gamma", sparsity.log_exp, "-gamma^2/2", "002", _PLANE),
    (
        "S_relu2",
        "beta gamma",
        sparsity.relu2,
        "M2/sqrt(M4), M2 = (b^2+g^2) Phi + b g phi, "
        "M4 = (b^4+6 b^2 g^2+3 g^4) Phi + (b^3 g+5 b g^3) phi at b/g",
        "002",
        _PLANE,
    ),
    (
        "log_S_relu2",
        "beta gamma",
        sparsity.log_relu2,
        "log S_relu2; -r^2/4 - log(2 pi)/4 - log(6|r|)/2 as r = beta/gamma -> -inf",
        "002",
        _PLANE,
    ),
    (
        "S_identity",
        "beta gamma",
        sparsity.identity,
        "(sqrt(2/pi) e^(-r^2/2) + r erf(r/sqrt 2))/sqrt(1+r^2), r = |beta/gamma|",
        "002",
        _PLANE,
    ),
    (
        "S_decay",
        "lam n",
        sparsity.decay,
        "sqrt(tanh(n x/2)/(n tanh(x/2))), x = -log lam",
        "002",
        "lam in [0, 1], n >= 1",
    ),
    (
        "S_linear_iid",
        "sigma mu q",
        sparsity.linear_iid,
        "1/sqrt(1 + (sigma |q|_2/(mu |q|_1))^2)",
        "002",
        "sigma, mu >= 0, q >= 0",
    ),
    (
        "S_linear",
        "q mu Sigma",
        sparsity.linear,
        "1/sqrt(1 + q^T Sigma q/(q.mu)^2)",
        "002",
        "Sigma positive semidefinite",
    ),
    ("mgf_gaussian", "sigma", noise.mgf_gaussian, "e^(sigma^2/2)", "000", "sigma >= 0"),
    ("mgf_uniform", "a", noise.mgf_uniform, "sinh(a)/a", "000", "a >= 0"),
    ("mgf_laplace", "b", noise.mgf_laplace, "1/(1-b^2), inf for b >= 1", "000", "b > 0"),
    (
        "noise_relative_variance",
        "kind scale",
        noise.relative_variance,
        "gaussian e^(s^2)-1; uniform a coth a - 1; laplace (2b^2+b^4)/(1-4b^2), inf for b >= 1/2",
        "000",
        "kind gaussian, uniform or laplace; scale >= 0 (laplace > 0)",
    ),
    ("softmax_entropy", "scores", entropy.entropy, "log l - t/l", "000", _ROW),
    ("varentropy", "scores", entropy.varentropy, "sum p (log p + H)^2", "ID", _ROW),
    ("logsumexp", "scores", entropy.logsumexp, "max + log sum e^(s-max)", "000", _ROW),
    ("log_sum_p2", "scores", entropy.log_collision, "LSE(2s) - 2 LSE(s)", "ID", _ROW),
    (
        "sparsity_S",
        "scores n",
        entropy.sparsity,
        "1/sqrt(n sum p^2), n counts hidden keys too",
        "002",
        f"{_ROW}; n >= 1",
    ),
    ("entropy_grad", "scores", entropy.entropy_gradient, "-p_j (log p_j + H)", "ID", _ROW),
    (
        "varentropy_grad",
        "scores",
        entropy.varentropy_gradient,
        "p_j (y_j^2 + 2 y_j - V), y = log p + H",
        "ID",
        _ROW,
    ),
    (
        "dH_dlambda",
        "scores lam",
        entropy.scale_derivative,
        "-lam Var_p(s), p = softmax(lam s)",
        "ID",
        f"{_ROW}; lam >= 0",
    ),
    (
        "lse_bounds",
        "scores",
        bounds.lse_bounds,
        "[max(max s, mean s + log n), LSE, max s + log n]",
        "000",
        _ROW,
    ),
    (
        "merge_states",
        "blocks values",
        entropy.merge_blocks,
        "[m, l, t, q, o, LSE, H] of blocks merged: l += e^(m_i-m) l_i, t gains (m_i-m) l_i",
        "ID",
        "blocks and values of equal shape; -inf hides a key",
    ),
    (
        "worst_entropy_deficit",
        "tau",
        _at_tau(bounds.worst_deficit),
        "D(2/tau), D(R) = m - 1 - log m, m = R/(1-e^-R)",
        "000",
        "tau > 0",
    ),
    (
        "worst_deficit_fraction",
        "tau",
        _at_tau(bounds.worst_split),
        "[x*, P*] = [(m-1)/(e^R-1), (m-1)/R], R = 2/tau",
        "000",
        "tau > 0",
    ),
    (
        "worst_entropy_deficit_range",
        "range",
        bounds.worst_deficit,
        "D(R) = m - 1 - log m, m = R/(1-e^-R)",
        "000",
        "range >= 0",
    ),
    (
        "min_entropy_bounded",
        "n tau",
        _min_entropy_at,
        "[H, k]: min over k of log k + log1p(q) + R q/(1+q), q = (n-k) e^-R/k, R = 2/tau",
        "000",
        "n >= 1, tau > 0",
    ),
    (
        "expected_max_normal",
        "n",
        gaussian.expected_max,
        "integral of t d Phi(t)^n",
        "001",
        "n >= 1",
    ),
    (
        "expected_max_normal_2term",
        "n",
        gaussian.expected_max_two_term,
        "a - (log log n + log 4 pi - 2 gamma_E)/(2a), a = sqrt(2 log n)",
        "001",
        "n > 1",
    ),
    (
        "gaussian_expected_entropy",
        "n x",
        gaussian.expected_entropy,
        "E H of softmax(x g), g iid N(0,1), exact",
        "REM",
        _SPREAD,
    ),
    (
        "gaussian_expected_logZ",
        "n x",
        gaussian.expected_log_partition,
        "E log sum e^(x g), exact",
        "REM",
        _SPREAD,
    ),
    (
        "gaussian_expected_sum_p2",
        "n x",
        gaussian.expected_collision,
        "E sum softmax(x g)^2, exact",
        "REM",
        _SPREAD,
    ),
    (
        "gaussian_expected_varentropy",
        "n x",
        gaussian.expected_varentropy,
        "E V of softmax(x g) = -x d(E H)/dx, exact",
        "REM",
        _SPREAD,
    ),
    (
        "rem_varentropy_limit",
        "n x",
        gaussian.varentropy_limit,
        "x^2 for x <= sqrt(2 log n), else m psi'(1-m) with m = sqrt(2 log n)/x",
        "REM",
        _SPREAD,
    ),
    (
        "rem_entropy_limit",
        "n x",
        gaussian.entropy_limit,
        "log n - x^2/2 for x <= sqrt(2 log n), else psi(1) - psi(1 - sqrt(2 log n)/x)",
        "REM",
        _SPREAD,
    ),
    (
        "gaussian_entropy_2nd_order",
        "n x",
        gaussian.second_order_entropy,
        "log n - x^2/2 + [x^2 e^(x^2) - (e^(x^2)-1)/2]/n",
        "000",
        _SPREAD,
    ),
    (
        "uniform_score_deficit",
        "range",
        gaussian.uniform_deficit,
        "log R - 1 + R/(e^R-1) - log(1-e^-R)",
        "001",
        "range >= 0",
    ),
    (
        "sphere_score_deficit",
        "d lam",
        gaussian.sphere_deficit,
        "lam K' - K, K = log 0F1(d/2; lam^2/4)",
        "REM",
        "d >= 1, lam >= 0",
    ),
    (
        "sphere_freezing_scale",
        "d n",
        gaussian.sphere_freezing_scale,
        "d n^(2/d) sqrt(1 - n^(-2/d))",
        "REM",
        "d >= 1, n >= 1",
    ),
    (
        "gaussian_entropy_rule",
        "x0 n0 n",
        gaussian.entropy_rule,
        "sqrt(x0^2 + 2 log(n/n0)), 0 where the root is of a negative number",
        "REM",
        "x0 >= 0, n0 >= 1, n >= 1",
    ),
    (
        "planted_mass",
        "lam n margin",
        gaussian.planted_mass,
        "1/(1 + exp(log n + lam^2/2 - lam margin))",
        "REM",
        "lam >= 0, n >= 1, margin finite",
    ),
    (
        "frozen_entropy",
        "m",
        gaussian.frozen_entropy,
        "psi(1) - psi(1-m), inf at m = 1",
        "REM",
        "m in [0, 1]",
    ),
    (
        "frozen_varentropy",
        "m",
        gaussian.frozen_varentropy,
        "m psi'(1-m), inf at m = 1",
        "REM",
        "m in [0, 1]",
    ),
    (
        "softmax_l1_modulus",
        "eps_inf",
        bounds.softmax_l1_modulus,
        "2 tanh(eps_inf/2)",
        "000",
        "eps_inf >= 0",
    ),
    (
        "geometric_entropy",
        "lam",
        entropy.geometric_entropy,
        "-log(1-lam) - lam log lam/(1-lam), inf at lam = 1",
        "000",
        "lam in [0, 1]",
    ),
    (
        "delta_ratio_mean",
        "EX EY CovXY VarY",
        noise.ratio_mean,
        "EX/EY - CovXY/EY^2 + VarY EX/EY^3",
        "000",
        "EY not 0, VarY >= 0",
    ),
    (
        "xavier_gain",
        "d_in d_out",
        init.xavier_gain,
        "[2 d_in/(d_in+d_out), 2 d_out/(d_in+d_out), first^2]",
        "004",
        "d_in, d_out >= 1",
    ),
    (
        "required_range",
        "n H",
        bounds.required_range,
        "R with D(R) = log n - H",
        "000",
        "n >= 1, 0 <= H <= log n",
    ),
    (
        "gaussian_scale_for_entropy",
        "n H",
        gaussian.scale_for_entropy,
        "x with E H(n, x) = H; inf at H = 0",
        "REM",
        "n >= 1, 0 <= H <= log n",
    ),
    (
        "softmax_inf1_norm",
        "p",
        bounds.softmax_inf1_norm,
        "max over key sets A of 4 P(A)(1 - P(A))",
        "000",
        "p >= 0, sum 1",
    ),
]

CATALOGUE: Mapping[str, Formula] = MappingProxyType(
    {
        name: Formula(name, tuple(inputs.split()), function, formula, source, domain)
        for name, inputs, function, formula, source, domain in _TABLE
    }
)
"""Every closed form by the name it has in the table of reference values."""
