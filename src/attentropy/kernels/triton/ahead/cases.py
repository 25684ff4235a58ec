"""What is compiled ahead of time: every configuration, and every feature by itself at one width.

Tensors hold nothing (they are on the meta device): 4 batches of 32 query heads on 8 key heads,
4096 keys; to decode, one query, and one batch where the keys are cut into shares. Backward kernels
take gradients of every statistic.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attentropy.kernels.triton.configs import ROWWISE, TABLE, Config
from attentropy.kernels.triton.launch import Launch
from attentropy.kernels.triton.plan_backward import Cotangents, Needs, plan_backward
from attentropy.kernels.triton.plan_forward import plan_forward
from attentropy.kernels.triton.problem import Problem

LENGTH = 4096
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}
WIDTHS = (16, 32, 64, 128, 256)
PLAIN = ("forward", "decode", "queries", "keys")
ROWS = ("join", "coefficients")
DECODING = ("join", "decode", "unsplit decode", "safe decode")
# kernels that a row of the table of configurations serves, where it is not the one of its name
SERVED = {
    "decode": ("decode", "unsplit decode"),
    "safe": ("safe forward", "safe decode", "safe queries", "safe keys"),
}
FEATURES_WIDTH = 64
EVERYTHING = "all at once"
LONE = "gradient of the output only"


@dataclass(frozen=True)
class Case:
    """One kernel with one configuration on one kind of call."""

    kernel: str
    width: int
    dtype: str
    config: Config
    feature: str = "causal"


def cases() -> Iterator[Case]:
    """Causal attention, or all features at once, in every configuration; each feature at a width.

    `safe` configurations come once for each kernel that they serve. float16, which shares its
    configurations with bfloat16, comes with those of plain calls.
    """
    for dtype in DTYPES:
        half = dtype == "float16"
        for kernel in () if half else ROWS:
            yield from (Case(kernel, width, dtype, ROWWISE[0]) for width in WIDTHS)
        for kernel, kinds in TABLE.items():
            if half and kernel not in PLAIN:
                continue
            feature = EVERYTHING if kernel.startswith("laden") else "causal"
            for width, choices in kinds[dtype == "float32"].items():
                for name in served(kernel):
                    yield from (Case(name, width, dtype, c, feature) for c in choices)
    for feature, change in FEATURES.items():
        if feature != EVERYTHING:
            for kernel in PLAIN[2:] if feature == LONE else PLAIN:
                plain = Case(kernel, FEATURES_WIDTH, "bfloat16", ROWWISE[0])
                choices = change(problem(plain)).configs(kernel)
                yield replace(plain, config=choices[0], feature=feature)


def served(kernel: str) -> tuple[str, ...]:
    """The kernels that a row of the table of configurations is for."""
    plain = kernel.removeprefix("laden ")
    return SERVED.get(plain, (plain,))


def launch_of(case: Case, *, stats: bool = True) -> Launch:
    """The launch that the case is about."""
    what = problem(case)
    needs = Needs(what.scale.shape[-1] > 1, what.bias is not None, what.relative is not None)
    ahead, written = plan_forward(what, stats=stats)
    grads = Cotangents(written.out, written.entropy, written.lse, written.collision)
    if case.feature == LONE:
        grads = Cotangents(written.out, None, None, None)
    back, _ = plan_backward(what, written, grads, needs)
    names = ("coefficients", "queries", "keys", "safe queries", "safe keys")
    places = {"forward": ahead[0], "join": ahead[1], "safe forward": ahead[-1]}
    places |= dict(zip(names, back, strict=False))
    name = "forward" if case.kernel.endswith("decode") else case.kernel
    if case.kernel == "safe decode":
        name = "safe forward"
    return replace(places[name], choices=(case.config,))


def problem(case: Case) -> Problem:
    """A call of the case's width, kind of input and feature."""
    queries = 1 if case.kernel in DECODING else LENGTH
    batch = 1 if case.kernel in ("decode", "join") else 4
    dtype = DTYPES[case.dtype]
    plain = Problem(
        q=_empty(batch, 32, queries, case.width, dtype=dtype),
        k=_empty(batch, 8, LENGTH, case.width, dtype=dtype),
        v=_empty(batch, 8, LENGTH, case.width, dtype=dtype),
        scale=_empty(1, 1, 1),
        hi=_empty(1, 1, queries, dtype=torch.int32),
    )
    return FEATURES[case.feature](plain) if case.feature in FEATURES else plain


def _full(x: Problem) -> Problem:
    return replace(x, hi=None)


def _window(x: Problem) -> Problem:
    return replace(x, lo=x.hi)


def _table(x: Problem) -> Problem:
    return replace(x, hi=None, mask=_empty(x.rows[0], 1, x.rows[2], x.keys, dtype=torch.bool))


def _bias(x: Problem) -> Problem:
    return replace(x, hi=None, bias=_empty(1, 32, x.rows[2], x.keys))


def _relative(x: Problem) -> Problem:
    return replace(x, relative=_empty(32, 257))


def _alibi(x: Problem) -> Problem:
    return replace(x, slopes=_empty(32))


def _softcap(x: Problem) -> Problem:
    return replace(x, softcap=30.0)


def _dropout(x: Problem) -> Problem:
    return replace(x, dropout=0.1, seed=2**40 + 12345)


def _row_scale(x: Problem) -> Problem:
    return replace(x, scale=_empty(1, 1, x.rows[2]))


def _own_keys(x: Problem) -> Problem:
    heads = x.k.new_empty(x.k.shape[0], x.rows[1], *x.k.shape[2:])
    return replace(x, k=heads, v=heads)


def _padded(x: Problem) -> Problem:
    return replace(x, q=x.q[..., :56], k=x.k[..., :56], v=x.v[..., :40])


def _all_at_once(x: Problem) -> Problem:
    for change in (_window, _table, _bias, _relative, _alibi, _softcap, _dropout, _row_scale):
        x = change(x)
    return replace(x, hi=x.lo)


# a sink is no feature of the kernels: it joins rows that are read already
FEATURES: dict[str, Callable[[Problem], Problem]] = {
    "full": _full,
    "window": _window,
    "bool mask": _table,
    "float bias": _bias,
    "relative bias": _relative,
    "ALiBi": _alibi,
    "softcap": _softcap,
    "dropout": _dropout,
    "row scale": _row_scale,
    "no groups": _own_keys,
    "D 56, Dv 40": _padded,
    LONE: lambda x: x,
    EVERYTHING: _all_at_once,
}


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
