"""What to launch for the gradients of a call."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from attentropy.kernels.triton.configs import ROWWISE
from attentropy.kernels.triton.device.coefficients import coefficients
from attentropy.kernels.triton.device.keys import keys_backward
from attentropy.kernels.triton.device.queries import queries_backward
from attentropy.kernels.triton.device.views import Slopes, Written, view
from attentropy.kernels.triton.launch import Launch
from attentropy.kernels.triton.problem import Problem, padded, table


class Cotangents(NamedTuple):
    """Gradients of the outputs; None is zero."""

    out: Tensor | None
    entropy: Tensor | None
    lse: Tensor | None
    collision: Tensor | None


class Needs(NamedTuple):
    """Which gradients beyond those of q, k and v are asked for."""

    scale: bool
    bias: bool
    relative: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class Gradients:
    """Gradients of the inputs, None for what is absent; of scale per row [B,H,Q]."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: Tensor | None
    bias: Tensor | None
    relative: Tensor | None


def plan_backward(
    problem: Problem, written: Written, grads: Cotangents, needs: Needs
) -> tuple[list[Launch], Gradients]:
    """Coefficients of the rows, then a sweep over the keys and one over the queries.

    Of `written`, the output and the statistics are read.
    """
    found = empty_gradients(problem, needs)
    slopes = Slopes(
        m=written.max_logit,
        log_l=written.log_l,
        shift=torch.empty_like(written.lse),
        entropy=None if grads.entropy is None else grads.entropy.contiguous(),
        collision=None if grads.collision is None else grads.collision.contiguous(),
    )
    dout = written.out.new_zeros(1, 1, 1, 1) if grads.out is None else grads.out
    shared = {
        **problem.shared(),
        "dout": view(dout, (*problem.rows, problem.v.shape[-1])),
        "slopes": slopes,
    }
    sweeps = [plan_queries(problem, shared, found), plan_keys(problem, shared, found)]
    launches = [plan_coefficients(problem, written, grads, slopes), *sweeps]
    if problem.hides:
        launches += [plan_again(problem, sweep) for sweep in sweeps]
    return launches, found


def plan_again(problem: Problem, sweep: Launch) -> Launch:
    """The sweep once more over what is not finite; what it adds to was right the first time."""
    changes = problem.again()
    if sweep.kernel is queries_backward:
        changes |= {"dbias": None, "drelative": None}
    choices = problem.configs("safe")
    return replace(sweep, args={**sweep.args, **changes}, choices=choices)


def plan_coefficients(
    problem: Problem, written: Written, grads: Cotangents, slopes: Slopes
) -> Launch:
    """The pass over the rows."""
    total, shape = written.lse.numel(), (*problem.rows, problem.v.shape[-1])
    args = {
        "out": written.out,
        "dout": None if grads.out is None else view(grads.out, shape),
        "slopes": slopes,
        "dlse": None if grads.lse is None else grads.lse.contiguous(),
        "entropy": written.entropy,
        "collision": written.collision,
        "heads": problem.rows[1],
        "queries": problem.rows[2],
        "total": total,
        "DV": problem.v.shape[-1],
        "BLOCK_V": padded(problem.v.shape[-1]),
    }
    return Launch(
        kernel=coefficients, args=args, choices=ROWWISE, programs=lambda n: triton.cdiv(total, n)
    )


def plan_queries(problem: Problem, shared: dict[str, Any], found: Gradients) -> Launch:
    """The sweep over the keys."""
    B, H, Q = problem.rows
    bias, relative = found.bias, found.relative
    args = {
        **shared,
        "dq": found.q,
        "dscale": found.scale,
        "dbias": None if bias is None else view(bias, (B, H, Q, problem.keys)),
        "drelative": None if relative is None else table(relative),
        "SPREAD_I": bias is not None and bias.shape[2] == 1 and Q > 1,
        "SPREAD_J": bias is not None and bias.shape[3] == 1 and problem.keys > 1,
    }
    return Launch(
        kernel=queries_backward,
        args=args,
        choices=problem.configs("queries"),
        programs=lambda n: B * H * triton.cdiv(Q, n),
    )


def plan_keys(problem: Problem, shared: dict[str, Any], found: Gradients) -> Launch:
    """The sweep over the queries."""
    lanes = problem.k.shape[0] * problem.k.shape[1]
    return Launch(
        kernel=keys_backward,
        args={**shared, "dk_out": found.k, "dv_out": found.v},
        choices=problem.configs("keys"),
        programs=lambda n: lanes * triton.cdiv(problem.keys, n),
    )


def empty_gradients(problem: Problem, needs: Needs) -> Gradients:
    """Room for the gradients: zeros where tiles add, nothing yet where they write."""

    def like(tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)

    def rows() -> Tensor:
        return torch.empty(problem.rows, dtype=torch.float32, device=problem.q.device)

    def zeros(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else torch.zeros_like(tensor, dtype=torch.float32)

    return Gradients(
        q=like(problem.q),
        k=like(problem.k),
        v=like(problem.v),
        scale=rows() if needs.scale else None,
        bias=zeros(problem.bias) if needs.bias else None,
        relative=zeros(problem.relative) if needs.relative else None,
    )
