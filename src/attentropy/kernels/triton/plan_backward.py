"""What to launch for the gradients of a call."""

from dataclasses import replace
from typing import Any

import torch
import triton
from torch import Tensor

from attentropy.kernels.passes import Grads, Needs
from attentropy.kernels.softmax_results import SoftmaxResults
from attentropy.kernels.triton.configs import ROWWISE
from attentropy.kernels.triton.device.coefficients import coefficients
from attentropy.kernels.triton.device.keys import keys_backward
from attentropy.kernels.triton.device.queries import queries_backward
from attentropy.kernels.triton.device.views import SLOPE_KINDS, SLOPE_ROWS, Slopes, Spans, view
from attentropy.kernels.triton.device.visibility import GRAIN, span_table
from attentropy.kernels.triton.launch import Launch
from attentropy.kernels.triton.problem import Problem, padded, table


def plan_backward(
    problem: Problem, written: SoftmaxResults, grads: Grads, needs: Needs
) -> tuple[list[Launch], dict[str, Tensor]]:
    """Coefficients of the rows, then a sweep over the keys and one over the queries.

    Gives the launches, and where they write gradients: those of q, k and v, and of scale (for
    each row), bias and relative as far as they are needed.
    """
    found = empty_gradients(problem, needs)
    slopes = empty_slopes(written, grads)
    dout = grads.get("out")
    dout = written.out.new_zeros(1, 1, 1, 1) if dout is None else dout
    shared = {**problem.shared(), "dout": view(dout, written.out.shape), "slopes": slopes}
    spans = empty_spans(problem)
    sweeps = [plan_queries(problem, shared, found), plan_keys(problem, shared, spans, found)]
    launches = [plan_coefficients(problem, written, grads, slopes), *sweeps]
    if spans is not None:
        launches.insert(2, plan_spans(problem, spans))
    if problem.hides:
        launches += [plan_again(problem, sweep) for sweep in sweeps]
    return launches, found


def empty_slopes(written: SoftmaxResults, grads: Grads) -> Slopes:
    """Room for the coefficients of the rows, and which of them there are, as gradients flow."""

    def flows(*names: str) -> int | None:
        return 1 if any(grads.get(name) is not None for name in names) else None

    batch, heads, queries = written.lse.shape
    blocks = triton.cdiv(queries, SLOPE_ROWS)
    shape = (batch, heads, blocks, len(SLOPE_KINDS), SLOPE_ROWS)
    return Slopes(
        ptr=torch.empty(shape, dtype=torch.float32, device=written.lse.device),
        blocks=blocks,
        linear=flows("entropy", "varentropy"),
        square=flows("varentropy"),
        collision=flows("collision"),
    )


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def plan_again(problem: Problem, sweep: Launch) -> Launch:
    """The sweep once more over what is not finite; what it adds to was right the first time."""
    changes = problem.again()
    if sweep.kernel is queries_backward:
        changes |= {"dbias": None, "drelative": None}
    return replace(sweep, args={**sweep.args, **changes}, tiles=problem.tiles("safe"))


def plan_coefficients(
    problem: Problem, written: SoftmaxResults, grads: Grads, slopes: Slopes
) -> Launch:
    """The pass over the rows."""
    total, width, dout = written.lse.numel(), written.out.shape[-1], grads.get("out")
    args = {
        "out": written.out,
        "dout": None if dout is None else view(dout, written.out.shape),
        "slopes": slopes,
        "base": written.log_l if problem.acting else written.lse,
        "m": written.max_logit if problem.acting else None,
        "dlse": _contiguous(grads.get("lse")),
        "dentropy": _contiguous(grads.get("entropy")),
        "dvarentropy": _contiguous(grads.get("varentropy")),
        "dcollision": _contiguous(grads.get("collision")),
        "entropy": written.entropy,
        "varentropy": written.varentropy,
        "collision": written.collision,
        "heads": problem.rows[1],
        "queries": problem.rows[2],
        "total": total,
        "DV": width,
        "BLOCK_V": padded(width),
    }
    return Launch(
        kernel=coefficients, args=args, tiles=ROWWISE, programs=lambda n: triton.cdiv(total, n)
    )


def plan_queries(problem: Problem, shared: dict[str, Any], found: dict[str, Tensor]) -> Launch:
    """The sweep over the keys."""
    B, H, Q = problem.rows
    bias, relative = found.get("bias"), found.get("relative")
    tiles = problem.tiles("queries")
    args = {
        **shared,
        **problem.columns(tiles),
        "dq": found["q"],
        "dscale": found.get("scale"),
        "dbias": None if bias is None else view(bias, (B, H, Q, problem.keys)),
        "drelative": None if relative is None else table(relative),
        "unsure": marks(problem, (B, H, Q)),
        "SPREAD_I": bias is not None and bias.shape[2] == 1 and Q > 1,
        "SPREAD_J": bias is not None and bias.shape[3] == 1 and problem.keys > 1,
    }
    return Launch(
        kernel=queries_backward,
        args=args,
        tiles=tiles,
        programs=lambda n: B * H * triton.cdiv(Q, n),
    )


def marks(problem: Problem, shape: tuple[int, ...]) -> Tensor | None:
    """Room for a mark on each row that is not finite; None where no key is ever hidden."""
    if not problem.hides:
        return None
    return torch.empty(shape, dtype=torch.int8, device=problem.call.q.device)


def empty_spans(problem: Problem) -> Spans | None:
    """Room for the queries that see every GRAIN keys; None without intervals."""
    bounds = [x for x in (problem.call.seen.lo, problem.call.seen.hi) if x is not None]
    if not bounds:
        return None
    batch, heads = (max(x.shape[place] for x in bounds) for place in (0, 1))
    blocks = triton.cdiv(problem.keys, GRAIN.value)
    shape = (batch, heads, blocks, 4)
    ptr = torch.empty(shape, dtype=torch.int32, device=problem.call.q.device)
    return Spans(ptr, ptr.stride(0) if batch > 1 else 0, ptr.stride(1) if heads > 1 else 0)


def plan_spans(problem: Problem, spans: Spans) -> Launch:
    """The pass over the intervals."""
    batch, heads, blocks, _ = spans.ptr.shape
    args = {"into": spans.ptr, "terms": problem.terms(), "heads": heads}
    return Launch(
        kernel=span_table, args=args, tiles=ROWWISE, programs=lambda _: batch * heads * blocks
    )


def plan_keys(
    problem: Problem, shared: dict[str, Any], spans: Spans | None, found: dict[str, Tensor]
) -> Launch:
    """The sweep over the queries."""
    k = problem.call.k
    lanes = k.shape[0] * k.shape[1]
    tiles = problem.tiles("keys")
    made = {"spans": spans, "dk_out": found["k"], "dv_out": found["v"], **problem.columns(tiles)}
    return Launch(
        kernel=keys_backward,
        args={**shared, **made, "unsure": marks(problem, tuple(k.shape[:3]))},
        tiles=tiles,
        programs=lambda n: lanes * triton.cdiv(problem.keys, n),
    )


def empty_gradients(problem: Problem, needs: Needs) -> dict[str, Tensor]:
    """Room for the gradients: zeros where tiles add, nothing yet where they write."""
    call = problem.call
    found = {
        name: torch.empty(x.shape, dtype=x.dtype, device=x.device)
        for name, x in (("q", call.q), ("k", call.k), ("v", call.v))
    }
    if needs["scale"]:
        found["scale"] = torch.empty(problem.rows, dtype=torch.float32, device=call.q.device)
    for name, x in (("bias", call.bias), ("relative", call.relative)):
        if needs[name] and x is not None:
            found[name] = torch.zeros_like(x, dtype=torch.float32)
    return found
