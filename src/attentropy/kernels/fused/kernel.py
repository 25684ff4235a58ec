"""Softmax attention with all its statistics in one pass on the CPU, and its exact gradient.

The computation is C++ (cpp/, explained in docs/kernel.md), called through ctypes on the memory of
the tensors: no copy is made of inputs whose last stride is 1. Where a call is recorded, the same
two passes are the operators `attentropy::fused` and `attentropy::fused_backward`.
"""

from typing import Any

import torch
from torch import Tensor

from attentropy.core.call import Call, Rows
from attentropy.core.errors import UnsupportedError
from attentropy.core.visibility import Visibility
from attentropy.core.weights import Softmax
from attentropy.kernels import noise, softmax_results
from attentropy.kernels.fused import joined, library
from attentropy.kernels.fused.block import Words, block, heads, pointer, spread
from attentropy.kernels.packing import INPUTS
from attentropy.kernels.passes import Grads, InputGradients, Needs, Operators
from attentropy.kernels.softmax_results import SoftmaxResults

name = "fused"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def lacks(call: Call) -> str | None:
    """What the call needs and this kernel lacks, in words; None if it can serve.

    Args:
        call: a resolved call.
    """
    if call.q.device.type != "cpu":
        return f"inputs on {call.q.device.type}"
    if library.missing is not None:
        return f"inputs on this CPU: {library.missing}"
    if type(call.weights) is not Softmax:
        return "weights other than Softmax"
    if call.additive is not None:
        return "the additive score"
    if call.seen.predicate is not None and call.seen.in_two() is None:
        return "a tile predicate mask"
    if call.dropout and call.seen.predicate is not None:
        return "dropout with a mask of two intervals"
    if call.dropout and call.seen.origin is not None:
        return "dropout of a part of a longer sequence"
    for x in (call.q, call.k, call.v):
        if x.dtype not in _DTYPES:
            return f"{str(x.dtype).removeprefix('torch.')} inputs"
    return None


def attend(call: Call) -> Rows:
    """Output and statistics of every row; differentiable once.

    Args:
        call: a resolved call.
    """
    return joined.attend(call, _one_interval)


def _one_interval(call: Call) -> Rows:
    """The rows of a call without a predicate."""
    return softmax_results.rows(PASSES(call))


def key_mass(call: Call) -> Tensor:
    """What each key receives, [B,H,K].

    Args:
        call: a resolved call.
    """
    if call.seen.predicate is not None:
        return joined.key_mass(call, _one_interval)
    return softmax_results.key_mass(PASSES, call)


def forward(call: Call) -> SoftmaxResults:
    """Run the forward pass. No autograd.

    Args:
        call: a resolved call.
    """
    lib = loaded()
    x = readable(call, lib)
    shape = x.q.shape[:3]
    out = empty_like_rows(x.q, x.v.shape[3])
    entropy = torch.empty(shape, dtype=torch.float32, device=x.q.device)
    lse, max_logit, collision, varentropy, log_l = [torch.empty_like(entropy) for _ in range(5)]
    argmax = torch.empty_like(entropy, dtype=torch.int64)
    results = SoftmaxResults(out, entropy, lse, max_logit, argmax, collision, varentropy, log_l)
    lib.forward(block(described(x), _of_results(results)))
    return results if x is call else results._replace(out=out.to(call.v.dtype))


def backward(call: Call, results: SoftmaxResults, grads: Grads, needs: Needs) -> InputGradients:
    """Gradients of INPUTS, None where not needed. No autograd.

    Args:
        call: a resolved call.
        results: what the forward pass gave for it.
        grads: gradients of the results.
        needs: which inputs need a gradient.
    """
    lib = loaded()
    x = readable(call, lib, pairs=not needs["scale"])
    if needs["scale"] and grads.get("out") is not None:
        results = softmax_results.unrounded(forward, call, results)
    results = results._replace(out=_unit_stride(results.out.to(x.q.dtype)))
    dout = grads["out"]
    dout = results.out.new_zeros(()).expand_as(results.out) if dout is None else dout
    dout = _paired(dout.to(x.q.dtype))
    flowing = {n: _row_gradient(grads.get(n)) for n in softmax_results.FLOWING[1:]}
    found = _empty_gradients(x, needs)
    fields = {f"d{n}": heads(g) if g.dim() == 4 else pointer(g) for n, g in found.items()}
    fields |= {f"d{n}": pointer(g) for n, g in flowing.items()} | {"dout": heads(dout)}
    if "bias" in found:
        fields["dbias"] = spread(found["bias"], _pairs(x))
    lib.backward(block(described(x), _of_results(results), fields))
    return tuple(_shaped(found.get(n), getattr(call, n), needs[n]) for n in INPUTS)


def _empty_gradients(x: Call, needs: Needs) -> dict[str, Tensor]:
    """Room for gradients: q, k and v are always written, of others those that are needed."""
    here: dict[str, Any] = {"device": x.q.device, "dtype": torch.float32}
    found = {name: empty_like_rows(t, t.shape[3]) for name, t in zip("qkv", x[:3], strict=True)}
    if needs["scale"]:
        found["scale"] = torch.empty(x.q.shape[:3], **here)
    if needs["bias"] and x.bias is not None:
        found["bias"] = torch.zeros(x.bias.shape, **here)
    if needs["relative"] and x.relative is not None:
        found["relative"] = torch.zeros(x.q.shape[1], x.relative.shape[1], **here)
    return found


def _row_gradient(grad: Tensor | None) -> Tensor | None:
    return None if grad is None else grad.to(torch.float32).contiguous()


def _shaped(grad: Tensor | None, like: Tensor | None, needed: bool) -> Tensor | None:
    """A gradient in the shape and dtype of its input."""
    if grad is None or like is None or not needed:
        return None
    same = grad.shape == like.shape and grad.dtype is like.dtype
    return grad if same else grad.sum_to_size(like.shape).to(like.dtype)


def loaded() -> library.Library:
    """The library that serves; raises if there is none."""
    if library.serving is None:
        raise UnsupportedError(f"the fused kernel cannot run: {library.missing}")
    return library.serving


def readable(x: Call, lib: library.Library, *, pairs: bool = True) -> Call:
    """The inputs in forms that the library reads: unit last strides, float32 or pairs of bf16.

    Args:
        x: a resolved call.
        lib: that is to read them.
        pairs: whether bf16 may be multiplied as it is.
    """
    if _is_readable(x):
        return x
    q, k, v = (t.detach().resolve_neg() for t in x[:3])
    if not q.dtype == k.dtype == v.dtype == torch.float32:
        even = q.shape[3] % 2 == v.shape[3] % 2 == 0
        bf16 = q.dtype == k.dtype == v.dtype == torch.bfloat16
        native = pairs and even and bf16 and lib.bf16
        q, k, v = (_paired(t) if native else t.to(torch.float32) for t in (q, k, v))
    q, k, v = (_unit_stride(t) for t in (q, k, v))  # after conversions, which may permute strides
    small = {
        name: None if t is None else t.detach().to(torch.float32)
        for name, t in (("scale", x.scale), ("bias", x.bias))
    }
    flat = {
        name: None if t is None else t.detach().to(torch.float32).contiguous()
        for name, t in (("relative", x.relative), ("slopes", x.slopes))
    }
    return x._replace(q=q, k=k, v=v, **small, **flat)  # type: ignore[arg-type]


def _is_readable(x: Call) -> bool:
    """Whether nothing has to be converted; the common case, told apart quickly."""
    dense = torch.float32
    return (
        x.q.dtype is x.k.dtype is x.v.dtype is x.scale.dtype is dense
        and x.q.stride(3) == x.k.stride(3) == x.v.stride(3) == 1
        and x.bias is x.relative is x.slopes is None
        and not (x.q.is_neg() or x.k.is_neg() or x.v.is_neg())
    )


def _unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _paired(x: Tensor) -> Tensor:
    """With every row at a multiple of four bytes, so that two bf16 are read as one word."""
    x = _unit_stride(x)
    if x.dtype != torch.bfloat16 or not (x.data_ptr() % 4 or any(s % 2 for s in x.stride()[:3])):
        return x
    return x.clone(memory_format=torch.contiguous_format)


def empty_like_rows(x: Tensor, width: int) -> Tensor:
    """[B,H,N,width] laid out as x is, heads inside tokens or not, in memory of its own.

    Not empty_like: of a view whose strides are tied it makes a last stride other than 1.

    Args:
        x: queries, keys or values.
        width: the last dimension.
    """
    batch, heads, rows, _ = x.shape
    if heads > 1 and x.stride(1) < x.stride(2):
        return x.new_empty(batch, rows, heads, width).transpose(1, 2)
    return x.new_empty(batch, heads, rows, width)


def described(x: Call) -> dict[str, Words]:
    """The fields of struct Args that describe the inputs.

    Args:
        x: what `readable` gave.
    """
    batch, query_heads, queries, dim = x.q.shape
    _, key_heads, keys, width = x.v.shape
    fields: dict[str, Words] = {
        "B": (batch,),
        "H": (query_heads,),
        "Hk": (key_heads,),
        "Q": (queries,),
        "K": (keys,),
        "D": (dim,),
        "Dv": (width,),
        "q": heads(x.q),
        "k": heads(x.k),
        "v": heads(x.v),
        "scale": spread(x.scale, (batch, query_heads, queries)),
        "bf16": (x.q.dtype is torch.bfloat16,),
        "threads": (torch.get_num_threads(),),
        "parallel_for": (library.pool().address,),
    }
    _add_terms(fields, x)
    return fields


def _add_terms(fields: dict[str, Words], x: Call) -> None:
    """The fields of struct Args that hide keys or add to logits."""
    fields |= bounds_of(x.seen)
    if x.bias is not None:
        fields["bias"] = spread(x.bias, _pairs(x))
    if x.relative is not None:
        count, width = x.relative.shape
        fields["relative"], fields["reach"] = pointer(x.relative), (width // 2,)
        fields["relatives"] = (width if count > 1 else 0,)
    if x.slopes is not None:
        fields["slopes"] = pointer(x.slopes)
    if x.softcap is not None:
        fields["softcap"] = (x.softcap,)
    if x.dropout:
        fields["kept"], fields["least"] = (1 / (1 - x.dropout),), (noise.least(x.dropout),)
        fields["seed"] = (0 if x.seed is None else int(x.seed),)


def bounds_of(seen: Visibility) -> dict[str, Words]:
    """The fields of struct Args that say which keys are seen.

    Args:
        seen: bounds, or a table.
    """
    fields: dict[str, Words] = {}
    shape = seen.extent[:3]
    if seen.lo is not None:
        fields["lo"] = spread(seen.lo, shape)
    if seen.hi is not None:
        fields["hi"] = spread(seen.hi, shape)
    if seen.table is not None:
        fields["mask"] = spread(seen.table, seen.extent[:4])
    return fields


def _pairs(x: Call) -> tuple[int, ...]:
    return *x.q.shape[:3], x.k.shape[2]


def _of_results(results: SoftmaxResults) -> dict[str, Words]:
    """The fields of struct Args that describe the results, which have their names."""
    names = SoftmaxResults._fields
    fields: dict[str, Words] = {n: (x.data_ptr(),) for n, x in zip(names, results, strict=True)}
    fields["out"] = heads(results.out)
    return fields


def _operators() -> Operators[SoftmaxResults]:
    from attentropy.kernels.fused.operators import OPERATORS

    return OPERATORS


PASSES = softmax_results.softmax_passes(
    "fused", kernel=name, forward=forward, backward=backward, operators=_operators
)
