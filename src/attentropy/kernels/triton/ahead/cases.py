"""What is compiled ahead of time: calls of every kernel, plain or with one feature or all of them.

Tensors hold nothing (they are on the meta device): 4 batches of 32 query heads on 8 key heads,
4096 keys; to decode, one query, and one batch where the keys are cut into shares. Backward kernels
take gradients of every statistic.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attentropy.core.call import Call
from attentropy.core.masks.extent import Extent
from attentropy.core.results import COMPUTED
from attentropy.core.visibility import Visibility
from attentropy.core.weights import Softmax
from attentropy.kernels.packing import INPUTS
from attentropy.kernels.softmax_results import FLOWING
from attentropy.kernels.triton.configs import TileSizes
from attentropy.kernels.triton.device.spread import spread
from attentropy.kernels.triton.device.visibility import span_table
from attentropy.kernels.triton.launch import Launch
from attentropy.kernels.triton.plan_backward import plan_backward
from attentropy.kernels.triton.plan_forward import plan_forward
from attentropy.kernels.triton.problem import Problem

LENGTH = 4096
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}
DECODING = ("join", "decode", "unsplit decode", "safe decode")
PLAIN = "causal"
EVERYTHING = "all at once"
LONE = "gradient of the output only"


@dataclass(frozen=True)
class CompiledCase:
    """One kernel on one kind of call, with tile sizes of its own."""

    kernel: str
    width: int
    dtype: str
    tiles: TileSizes
    feature: str = PLAIN


def launch_of(case: CompiledCase, *, asked: frozenset[str] = COMPUTED) -> Launch:
    """The launch that the case is about, with the statistics that are asked for."""
    what = problem(case)
    what = replace(what, call=what.call._replace(asked=asked))
    needs = {name: getattr(what.call, name) is not None for name in INPUTS}
    needs["scale"] = what.call.scale.shape[-1] > 1
    ahead, written = plan_forward(what)
    flowing = ("out",) if case.feature == LONE else FLOWING
    back, _ = plan_backward(what, written, {n: getattr(written, n) for n in flowing}, needs)
    names = ("coefficients", "queries", "keys", "safe queries", "safe keys")
    places = {"forward": ahead[0], "join": ahead[1]}
    after = [one for one in ahead if one.args.get("SAFE") or one.kernel is spread]
    places |= dict(zip(("safe forward", "spread"), after, strict=False))
    sweeps = [launch for launch in back if launch.kernel is not span_table]
    places |= dict(zip(names, sweeps, strict=False))
    name = "forward" if case.kernel.endswith("decode") else case.kernel
    if case.kernel == "safe decode":
        name = "safe forward"
    return replace(places[name], tiles=case.tiles)


def problem(case: CompiledCase) -> Problem:
    """A call of the case's width, kind of input and feature."""
    queries = 1 if case.kernel in DECODING else LENGTH
    batch = 1 if case.kernel in ("decode", "join") else 4
    dtype = DTYPES[case.dtype]
    extent = Extent(batch, 32, queries, LENGTH, torch.device("meta"))
    plain = Call(
        q=_empty(batch, 32, queries, case.width, dtype=dtype),
        k=_empty(batch, 8, LENGTH, case.width, dtype=dtype),
        v=_empty(batch, 8, LENGTH, case.width, dtype=dtype),
        scale=_empty(1, 1, 1),
        weights=Softmax(),
        seen=Visibility(extent, hi=_empty(1, 1, queries, dtype=torch.int32)),
    )
    return Problem(FEATURES[case.feature](plain) if case.feature in FEATURES else plain)


def _seeing(x: Call, **parts: Tensor | None) -> Call:
    return x._replace(seen=x.seen._replace(**parts))  # type: ignore[arg-type]


def _full(x: Call) -> Call:
    return _seeing(x, hi=None)


def _window(x: Call) -> Call:
    return _seeing(x, lo=x.seen.hi)


def _table(x: Call) -> Call:
    batch, _, queries, keys, _ = x.extent
    return _seeing(x, hi=None, table=_empty(batch, 1, queries, keys, dtype=torch.bool))


def _bias(x: Call) -> Call:
    return _full(x)._replace(bias=_empty(1, 32, x.extent.queries, x.extent.keys))


def _relative(x: Call) -> Call:
    return x._replace(relative=_empty(32, 257))


def _alibi(x: Call) -> Call:
    return x._replace(slopes=_empty(32))


def _softcap(x: Call) -> Call:
    return x._replace(softcap=30.0)


def _dropout(x: Call) -> Call:
    return x._replace(dropout=0.1, seed=torch.tensor(2**40 + 12345))


def _row_scale(x: Call) -> Call:
    return x._replace(scale=_empty(1, 1, x.extent.queries))


def _own_keys(x: Call) -> Call:
    heads = x.k.new_empty(x.k.shape[0], x.extent.heads, *x.k.shape[2:])
    return x._replace(k=heads, v=heads)


def _padded(x: Call) -> Call:
    return x._replace(q=x.q[..., :56], k=x.k[..., :56], v=x.v[..., :40])


def _all_at_once(x: Call) -> Call:
    for change in (_window, _table, _bias, _relative, _alibi, _softcap, _dropout, _row_scale):
        x = change(x)
    return _seeing(x, hi=x.seen.lo)


# a sink is not a feature of the kernels: it joins rows that are read already
FEATURES: dict[str, Callable[[Call], Call]] = {
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
