"""Softmax attention with all its statistics in one pass on the CPU, and its exact gradient.

The computation is C++ (cpp/, explained in docs/kernel.md), called through ctypes on the memory of
the tensors: no copy is made of inputs whose last stride is 1. Under torch.compile, and
wherever else a call is recorded, the same two calls are the operators `attentropy::fused` and
`attentropy::fused_backward`.
"""

import struct
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attentropy.core.call import Call, Rows
from attentropy.core.errors import UnsupportedError
from attentropy.core.weights import Softmax
from attentropy.kernels.autograd import once, unbatched
from attentropy.kernels.fused import library
from attentropy.kernels.tracing import traced

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Inputs(NamedTuple):
    """What the kernel reads; those before `lo` may need a gradient."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: Tensor
    bias: Tensor | None
    relative: Tensor | None
    lo: Tensor | None
    hi: Tensor | None
    mask: Tensor | None
    slopes: Tensor | None
    softcap: float


class Results(NamedTuple):
    """What it writes. `shift` is ln sum e^(s - max_logit), kept for the backward pass."""

    out: Tensor
    entropy: Tensor
    lse: Tensor
    max_logit: Tensor
    argmax: Tensor
    collision: Tensor
    shift: Tensor


def lacks(call: Call) -> str | None:
    """What the call needs that this kernel has not, in words; None if it can serve."""
    if call.q.device.type != "cpu":
        return f"inputs on {call.q.device.type}"
    if library.missing is not None:
        return f"inputs on this CPU: {library.missing}"
    if type(call.weights) is not Softmax:
        return "weights other than Softmax"
    if call.additive is not None:
        return "the additive score"
    if call.seen.predicate is not None:
        return "a tile predicate mask"
    if call.dropout:
        return "dropout"
    for x in (call.q, call.k, call.v):
        if x.dtype not in _DTYPES:
            return f"{str(x.dtype).removeprefix('torch.')} inputs"
    return None


def attend(call: Call) -> Rows:
    """Output and statistics of every row; differentiable once."""
    given = inputs(call)
    if traced(*given[:-1]):
        from attentropy.kernels.fused.operators import fused

        return Rows(*fused(*given)[:6])
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in given[:6]):
        return Rows(*_Fused.apply(*given)[:6])
    return Rows(*forward(given)[:6])


def inputs(call: Call) -> Inputs:
    """What the kernel reads of a call."""
    return Inputs(
        call.q, call.k, call.v, call.scale, call.bias, call.relative,
        call.seen.lo, call.seen.hi, call.seen.table, call.slopes, call.softcap or 0.0,
    )  # fmt: skip


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        results = forward(Inputs(*inputs))
        ctx.save_for_backward(*inputs[:-1], *results)
        ctx.softcap = inputs[-1]
        ctx.mark_non_differentiable(results.max_logit, results.argmax, results.shift)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        unbatched("fused", *grads)
        saved = ctx.saved_tensors
        inputs: Inputs = Inputs._make((*saved[:10], ctx.softcap))
        results: Results = Results._make(saved[10:])
        needs = ctx.needs_input_grad[:6]
        found = backward(inputs, results, grads, needs)
        return *once("fused", *found, anchors=(*saved, *grads)), *[None] * 5


def forward(inputs: Inputs) -> Results:
    """Run the forward pass. No autograd."""
    lib = _library()
    x = _readable(inputs, lib)
    rows = x.q.shape[:3]
    out = _empty_like_queries(x.q, x.v.shape[3])
    entropy = torch.empty(rows, dtype=torch.float32, device=x.q.device)
    lse, max_logit, collision, shift = [torch.empty_like(entropy) for _ in range(4)]
    argmax = torch.empty_like(entropy, dtype=torch.int64)
    results = Results(out, entropy, lse, max_logit, argmax, collision, shift)
    lib.call("forward", [*_reads(x), *_writes(results), *[0] * 26, *_tail(x)])
    return results if x is inputs else results._replace(out=out.to(inputs.v.dtype))


def backward(
    inputs: Inputs, results: Results, grads: tuple[Tensor | None, ...], needs: tuple[bool, ...]
) -> list[Tensor | None]:
    """Gradients of the first six inputs, None where not needed. No autograd."""
    lib = _library()
    x = _readable(inputs, lib, pairs=not needs[3])
    results = results._replace(out=_unit_stride(results.out.to(x.q.dtype)))
    here: dict[str, Any] = {"device": x.q.device, "dtype": torch.float32}
    dout = torch.zeros((), **here).expand_as(results.out) if grads[0] is None else grads[0]
    dout = _paired(_unit_stride(dout.to(x.q.dtype)))
    dentropy, dlse, dcollision = (
        None if g is None else g.to(torch.float32).contiguous()
        for g in (grads[1], grads[2], grads[5])
    )
    dq, dk, dv = (torch.empty_like(t) for t in (x.q, x.k, x.v))
    rows = x.q.shape[:3]
    dscale = torch.empty(rows, **here) if needs[3] else None
    dbias = torch.zeros(x.bias.shape, **here) if needs[4] and x.bias is not None else None
    width = 1 if x.relative is None else x.relative.shape[1]
    drelative = torch.zeros(rows[1], width, **here) if needs[5] else None
    writes = [
        dout.data_ptr(), *dout.stride()[:3], _at(dentropy), _at(dlse), _at(dcollision),
        dq.data_ptr(), dk.data_ptr(), dv.data_ptr(),
        *dq.stride()[:3], *dk.stride()[:3], *dv.stride()[:3],
        _at(dscale), *_spread(dbias, _square(x)), _at(drelative),
    ]  # fmt: skip
    lib.call("backward", [*_reads(x), *_writes(results), *writes, *_tail(x)])
    found = (dq, dk, dv, dscale, dbias, drelative)
    return [
        None if g is None or t is None or not need else g.sum_to_size(t.shape).to(t.dtype)
        for g, t, need in zip(found, inputs[:6], needs, strict=True)
    ]


def _library() -> library.Library:
    if library.serving is None:
        raise UnsupportedError(f"the fused kernel cannot run: {library.missing}")
    return library.serving


def _readable(x: Inputs, lib: library.Library, *, pairs: bool = True) -> Inputs:
    """The inputs in forms that the library reads: unit last strides, float32 or pairs of bf16."""
    if _is_readable(x):
        return x
    q, k, v = (_unit_stride(t.detach()) for t in x[:3])
    if not q.dtype == k.dtype == v.dtype == torch.float32:
        even = q.shape[3] % 2 == v.shape[3] % 2 == 0
        bf16 = q.dtype == k.dtype == v.dtype == torch.bfloat16
        native = pairs and even and bf16 and lib.bf16
        q, k, v = (_paired(t) if native else t.to(torch.float32) for t in (q, k, v))
    small = {
        name: None if t is None else t.detach().to(torch.float32)
        for name, t in (("scale", x.scale), ("bias", x.bias))
    }
    flat = {
        name: None if t is None else t.detach().to(torch.float32).contiguous()
        for name, t in (("relative", x.relative), ("slopes", x.slopes))
    }
    return x._replace(q=q, k=k, v=v, **small, **flat)  # type: ignore[arg-type]


def _is_readable(x: Inputs) -> bool:
    """Whether nothing has to be converted; the common case, told apart quickly."""
    dense = torch.float32
    return (
        x.q.dtype is x.k.dtype is x.v.dtype is x.scale.dtype is dense
        and x.q.stride(3) == x.k.stride(3) == x.v.stride(3) == 1
        and x.bias is x.relative is x.slopes is None
    )


def _unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _paired(x: Tensor) -> Tensor:
    """With every row at a multiple of four bytes, so that two bf16 are read as one word."""
    if x.dtype != torch.bfloat16 or not (x.data_ptr() % 4 or any(s % 2 for s in x.stride()[:3])):
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _empty_like_queries(q: Tensor, width: int) -> Tensor:
    """[B,H,Q,width] laid out as q is: heads inside tokens if q comes from such a view."""
    batch, heads, queries, dim = q.shape
    if width == dim and q.is_contiguous():
        return torch.empty_like(q)
    if heads > 1 and q.stride(1) < q.stride(2):
        return q.new_empty(batch, queries, heads, width).transpose(1, 2)
    return q.new_empty(batch, heads, queries, width)


def _at(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def _spread(x: Tensor | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Address and strides, 0 where x is broadcast to `shape`."""
    if x is None:
        return (0,) * (1 + len(shape))
    if x.dim() != len(shape):
        x = x.expand(shape)
    return x.data_ptr(), *[0 if n == 1 else s for n, s in zip(x.shape, x.stride(), strict=True)]


def _square(x: Inputs) -> tuple[int, int, int, int]:
    batch, heads, queries, _ = x.q.shape
    return batch, heads, queries, x.k.shape[2]


def _reads(x: Inputs) -> list[int]:
    """The fields of struct Args that describe the inputs, in its order."""
    batch, heads, queries, dim = x.q.shape
    _, kv_heads, keys, width = x.v.shape
    rows, square = (batch, heads, queries), (batch, heads, queries, keys)
    table = (0, 0, 0)
    if x.relative is not None:
        table = (
            _at(x.relative),
            x.relative.shape[1] * (len(x.relative) > 1),
            x.relative.shape[1] // 2,
        )
    return [
        batch, heads, kv_heads, queries, keys, dim, width,
        x.q.data_ptr(), x.k.data_ptr(), x.v.data_ptr(),
        *x.q.stride()[:3], *x.k.stride()[:3], *x.v.stride()[:3],
        *_spread(x.scale, rows), *_spread(x.lo, rows), *_spread(x.hi, rows),
        *_spread(x.mask, square), *_spread(x.bias, square), *table,
        _at(x.slopes), _bits(x.softcap),
    ]  # fmt: skip


def _bits(x: float) -> int:
    """The bits of a double, which in the block of arguments stand where an integer does."""
    return int(struct.unpack("q", struct.pack("d", x))[0]) if x else 0


def _writes(y: Results) -> list[int]:
    return [
        y.out.data_ptr(), *y.out.stride()[:3],
        *(t.data_ptr() for t in (y.entropy, y.lse, y.max_logit, y.collision, y.shift, y.argmax)),
    ]  # fmt: skip


def _tail(x: Inputs) -> list[int]:
    bf16 = int(x.q.dtype == torch.bfloat16)
    return [bf16, torch.get_num_threads(), library.pool().address]
