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
from attentropy.kernels.triton.device.views import Slopes, view
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
    slopes = Slopes(
        m=written.max_logit,
        log_l=written.log_l,
        shift=torch.empty_like(written.lse),
        entropy=_contiguous(grads.get("entropy")),
        collision=_contiguous(grads.get("collision")),
    )
    dout = grads.get("out")
    dout = written.out.new_zeros(1, 1, 1, 1) if dout is None else dout
    shared = {**problem.shared(), "dout": view(dout, written.out.shape), "slopes": slopes}
    sweeps = [plan_queries(problem, shared, found), plan_keys(problem, shared, found)]
    launches = [plan_coefficients(problem, written, grads, slopes), *sweeps]
    if problem.hides:
        launches += [plan_again(problem, sweep) for sweep in sweeps]
    return launches, found


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def plan_again(problem: Problem, sweep: Launch) -> Launch:
    """The sweep once more over what is not finite; what it adds to was right the first time."""
    changes = problem.again()
    if sweep.kernel is queries_backward:
        changes |= {"dbias": None, "drelative": None}
    choices = problem.configs("safe")
    return replace(sweep, args={**sweep.args, **changes}, choices=choices)


def plan_coefficients(
    problem: Problem, written: SoftmaxResults, grads: Grads, slopes: Slopes
) -> Launch:
    """The pass over the rows."""
    total, width, dout = written.lse.numel(), written.out.shape[-1], grads.get("out")
    args = {
        "out": written.out,
        "dout": None if dout is None else view(dout, written.out.shape),
        "slopes": slopes,
        "dlse": _contiguous(grads.get("lse")),
        "entropy": written.entropy,
        "collision": written.collision,
        "heads": problem.rows[1],
        "queries": problem.rows[2],
        "total": total,
        "DV": width,
        "BLOCK_V": padded(width),
    }
    return Launch(
        kernel=coefficients, args=args, choices=ROWWISE, programs=lambda n: triton.cdiv(total, n)
    )


def plan_queries(problem: Problem, shared: dict[str, Any], found: dict[str, Tensor]) -> Launch:
    """The sweep over the keys."""
    B, H, Q = problem.rows
    bias, relative = found.get("bias"), found.get("relative")
    args = {
        **shared,
        "dq": found["q"],
        "dscale": found.get("scale"),
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


def plan_keys(problem: Problem, shared: dict[str, Any], found: dict[str, Tensor]) -> Launch:
    """The sweep over the queries."""
    lanes = problem.call.k.shape[0] * problem.call.k.shape[1]
    return Launch(
        kernel=keys_backward,
        args={**shared, "dk_out": found["k"], "dv_out": found["v"]},
        choices=problem.configs("keys"),
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
