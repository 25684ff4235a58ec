"""sum_i w_ij without autograd.grad, which torch.compile does not take into a graph.

Values are ones of width one, so that what a key receives is the gradient of sum_i out_i with
respect to its value. Kernels that are operators have a second operator for gradients, which is
asked directly; kernels in plain torch are differentiated by torch.func.
"""

from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from attentropy.core.call import Call, Rows
from attentropy.kernels.attended import attended
from attentropy.kernels.fused import kernel as fused
from attentropy.kernels.tiled import softmax as streaming
from attentropy.kernels.tiled import sums as elementwise
from attentropy.kernels.tiled.hard import is_hard
from attentropy.kernels.triton import kernel as triton

_VALUES = [name == "v" for name in streaming.INPUTS]


def received(call: Call, kernel: ModuleType) -> Tensor:
    """What every key receives from the rows of its head, as `call.v`, [B,Hk,K,1]."""
    if is_hard(call.weights):
        return _differentiated(call, kernel)
    if kernel is streaming:
        return _of_streaming(call)
    if kernel is fused:
        return _of_fused(call)
    return _of_triton(call) if kernel is triton else _differentiated(call, kernel)


def _differentiated(call: Call, kernel: ModuleType) -> Tensor:
    def total(values: Tensor) -> Tensor:
        rows: Rows = kernel.attend(call._replace(v=values))
        return (rows.out * _shares(call, rows)).sum()

    gradient: Callable[[Tensor], Tensor] = torch.func.grad(total)
    return gradient(call.v)


def _of_streaming(call: Call) -> Tensor:
    from attentropy.kernels.tiled import operators

    given = operators.arguments(call)
    if call.weights.probabilities:
        out, entropy, lse, m, argmax, collision, log_l = operators.softmax_op(*given)
        share = _shares(call, Rows(out, entropy, lse, m, argmax, collision))
        results, present = [out, entropy, m, collision, log_l], [True, False, False, False]
    else:
        _, n1, n2, _, _ = operators.sums_op(*given)
        share = elementwise.normaliser(call, n1, n2)[..., None]
        results, present = [], [True, False, False]
    (mass,) = operators.backward_op(*given, results, [share], present, _VALUES)
    return mass


def _of_fused(call: Call) -> Tensor:
    from attentropy.kernels.fused import operators

    given = fused.inputs(call)
    results = operators.fused(*given)
    present = [True] + [False] * 6
    share = _shares(call, Rows(*results[:6]))
    (mass,) = operators.fused_backward(*given, list(results), [share], present, _VALUES[:6])
    return mass


def _of_triton(call: Call) -> Tensor:
    from attentropy.kernels.triton.operators import triton_backward, triton_forward

    given = triton.arguments(call)
    results = triton_forward(*given)
    out, entropy, _, m, _, collision, log_l = results
    share = _shares(call, Rows(*results[:6]))
    nothing = [False] * 3
    return triton_backward(
        share, None, None, None, out, entropy, m, collision, log_l, *given, nothing
    )[2]


def _shares(call: Call, rows: Rows) -> Tensor:
    """What the sink leaves of an output of one, [B,H,Q,1]."""
    return attended(call, rows._replace(out=torch.ones_like(rows.out))).out
