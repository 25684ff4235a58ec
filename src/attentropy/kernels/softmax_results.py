"""What the kernels of softmax attention have in common: their results, and what is made of them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from attentropy.core.call import Call, Rows
from attentropy.kernels.mass import receiving, shares
from attentropy.kernels.passes import Grads, InputGradients, Needs, Operators, Passes


class SoftmaxResults(NamedTuple):
    """What the forward pass of softmax attention computes, each [B,H,Q] but the first.

    A number of each row that is added here and to `rows` is part of the operators of every kernel;
    what remains is that each kernel computes it.

    Attributes:
        out: [B,H,Q,Dv], of the dtype of v.
        entropy: float32, or float64 for float64 inputs, like everything below but argmax.
        lse: log of the sum of e^s.
        max_logit: the largest logit m.
        argmax: int64, the key that has it.
        collision: sum of p^2.
        varentropy: sum of p (log p + entropy)^2.
        log_l: log of the sum of e^(s - m), for the backward pass and for merging.
    """

    out: Tensor
    entropy: Tensor
    lse: Tensor
    max_logit: Tensor
    argmax: Tensor
    collision: Tensor
    varentropy: Tensor
    log_l: Tensor


FLOWING = ("out", "entropy", "lse", "collision", "varentropy")
"""Results that gradients flow through."""


def empty(call: Call) -> SoftmaxResults:
    """Results of a call with nothing in them.

    Args:
        call: a resolved call.
    """
    shape = call.q.shape[:3]
    wide = torch.float64 if call.q.dtype == torch.float64 else torch.float32
    made = {name: call.q.new_empty(shape, dtype=wide) for name in SoftmaxResults._fields}
    made["argmax"] = call.q.new_empty(shape, dtype=torch.int64)
    made["out"] = call.v.new_empty(*shape, call.v.shape[3])
    return SoftmaxResults(**made)


def softmax_passes(
    name: str,
    *,
    kernel: str,
    forward: Callable[[Call], SoftmaxResults],
    backward: Callable[[Call, SoftmaxResults, Grads, Needs], InputGradients],
    operators: Callable[[], Operators[SoftmaxResults]],
) -> Passes[SoftmaxResults]:
    """The two passes of a kernel of softmax attention; see `Passes`.

    Args:
        name: of the operator.
        kernel: the name of the kernel.
        forward: the results of a call.
        backward: gradients of INPUTS.
        operators: gives the operators.
    """
    return Passes(name, kernel, SoftmaxResults, FLOWING, forward, backward, empty, operators)


def unrounded(
    forward: Callable[[Call], SoftmaxResults], call: Call, results: SoftmaxResults
) -> SoftmaxResults:
    """Results whose output is float32 or better, computed a second time if it was rounded.

    Backward passes take sum_j p_ij dout_i . v_j from the output, as dout_i . out_i. What rounding
    to 16 bits changes there comes back in the gradient of a scale times the mean score of the row,
    which may be larger than that gradient.

    Args:
        forward: the forward pass of the kernel.
        call: a resolved call.
        results: what the forward pass gave for it.
    """
    if results.out.dtype in (torch.float32, torch.float64):
        return results
    q, k, v = (x.detach().float() for x in (call.q, call.k, call.v))
    with torch.no_grad():
        return results._replace(out=forward(call._replace(q=q, k=k, v=v)).out)


def rows(results: SoftmaxResults) -> Rows:
    """Results as a kernel returns them.

    Args:
        results: of a forward pass.
    """
    return Rows(mass=None, **results._asdict())


def key_mass(passes: Passes[SoftmaxResults], call: Call) -> Tensor:
    """sum_i p_ij [B,H,K]: the gradient of sum_i out_i with respect to values that are ones.

    Args:
        passes: those of a kernel.
        call: a resolved call.
    """
    with torch.no_grad():
        call = receiving(call)
        results = passes(call)
        kept = shares(call, rows(results))
        return passes.gradient(call, results, {"out": kept}, of="v")[..., 0]
