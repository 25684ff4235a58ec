"""The forward and the backward pass of a kernel as one differentiable function of a call.

In eager mode passes are called directly, inside an autograd.Function where a gradient may be
asked for. Where a call is recorded instead of run (torch.compile, make_fx, fake tensors) the same
two passes are torch operators; `Operators` makes them, with argument lists from `packing`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from attentropy.core.call import Call
from attentropy.kernels.autograd import once, unbatched
from attentropy.kernels.packing import INPUTS, Arguments, pack, schema, unpack
from attentropy.kernels.tracing import traced

Grads = Mapping[str, Tensor | None]
"""Gradients of results by name; None is zero."""
Needs = Mapping[str, bool]
"""Which of INPUTS need a gradient, by name."""
InputGradients = tuple[Tensor | None, ...]
"""Gradients of INPUTS, in their order; None where none is needed."""

R = TypeVar("R", bound=tuple[Any, ...])
_HELD = (*INPUTS, "slopes")  # fields of a call that are saved as tensors


@dataclass(frozen=True, eq=False)
class Passes(Generic[R]):
    """A kernel's two passes, neither of which records gradients.

    Attributes:
        name: of the operator; that of the backward pass ends with _backward.
        kernel: the name of the kernel, for messages.
        results: the named tuple of tensors that the forward pass returns.
        flowing: names of the results that gradients flow through.
        forward: the results of a call.
        backward: gradients of INPUTS for a call, its results, their gradients, and the needs.
        empty: results of the right shapes and dtypes, with nothing in them.
        operators: gives the operators, which are made when a call is recorded for the first time.
    """

    name: str
    kernel: str
    results: type[R]
    flowing: tuple[str, ...]
    forward: Callable[[Call], R]
    backward: Callable[[Call, R, Grads, Needs], InputGradients]
    empty: Callable[[Call], R]
    operators: Callable[[], "Operators[R]"]

    def __call__(self, call: Call) -> R:
        """The results of a call; differentiable once."""
        inputs = _inputs(call)
        if traced(*inputs):
            return self.operators().forward(call)
        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
            return self.results(*_Recorded.apply(self, call, *inputs))
        return self.forward(call)

    def gradient(self, call: Call, results: R, grads: Grads, of: str) -> Tensor:
        """The gradient of one of INPUTS; not differentiable.

        Args:
            call: a resolved call.
            results: what the forward pass gave for it.
            grads: gradients of the results.
            of: the name of the input.
        """
        needs = {name: name == of for name in INPUTS}
        backward = self.operators().backward if traced(*_inputs(call)) else self.backward
        found = backward(call, results, grads, needs)[INPUTS.index(of)]
        assert found is not None
        return found

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the results."""
        names: tuple[str, ...] = self.results._fields  # type: ignore[attr-defined]
        return names

    @cached_property
    def constant(self) -> tuple[int, ...]:
        """Places of the results that have no gradient."""
        return tuple(i for i, name in enumerate(self.fields) if name not in self.flowing)


def _inputs(call: Call) -> list[Tensor | None]:
    return [getattr(call, name) for name in INPUTS]


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, passes: Passes[Any], call: Call, *inputs: Tensor | None) -> Any:
        results = passes.forward(call)
        ctx.passes, ctx.call = passes, _with_tensors(call, (None,) * len(_HELD), None)
        ctx.save_for_backward(*inputs, call.slopes, call.seen.table, *results)
        ctx.mark_non_differentiable(*(results[i] for i in passes.constant))
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        passes, saved = ctx.passes, ctx.saved_tensors
        unbatched(passes.kernel, *grads)
        held, (table, *results) = saved[: len(_HELD)], saved[len(_HELD) :]
        call = _with_tensors(ctx.call, held, table)
        needs = dict(zip(INPUTS, ctx.needs_input_grad[2:], strict=True))
        flowing = dict(zip(passes.fields, grads, strict=True))
        found = passes.backward(call, passes.results(*results), flowing, needs)
        return None, None, *once(passes.kernel, *found, anchors=(*saved, *grads))


def _with_tensors(call: Call, held: tuple[Tensor | None, ...], table: Tensor | None) -> Call:
    """The call with other tensors: those of _HELD, and the table of its mask."""
    fields: dict[str, Any] = dict(zip(_HELD, held, strict=True))
    if call.seen.table is not table or call.seen.added is not fields["bias"]:
        fields["seen"] = call.seen._replace(table=table, added=fields["bias"])
    return call._replace(**fields)


class Operators(Generic[R]):
    """The two passes as torch operators `attentropy::<name>` and `attentropy::<name>_backward`."""

    def __init__(self, passes: Passes[R]) -> None:
        self.passes = passes
        results = ", ".join(f"Tensor {name}" for name in passes.fields)
        more = "Tensor[] results, Tensor?[] grads, bool[] needs"
        forward = _define(passes.name, f"({schema()}) -> ({results})", self._forward)
        forward.register_fake(self._empty)
        forward.register_autograd(self._backward, setup_context=self._save)
        backward = f"{passes.name}_backward"
        _define(backward, f"({schema()}, {more}) -> Tensor[]", self._gradients).register_fake(
            self._empty_gradients
        )
        self.forward_op = getattr(torch.ops.attentropy, passes.name).default
        self.backward_op = getattr(torch.ops.attentropy, backward).default

    def forward(self, call: Call) -> R:
        """`passes.forward` as an operator; differentiable.

        Args:
            call: a resolved call.
        """
        return self.passes.results(*self.forward_op(*pack(call)))

    def backward(self, call: Call, results: R, grads: Grads, needs: Needs) -> InputGradients:
        """`passes.backward` as an operator.

        Args:
            call: a resolved call.
            results: what the forward pass gave for it.
            grads: gradients of the results.
            needs: which inputs need a gradient.
        """
        given = [grads.get(name) for name in self.passes.fields]
        return self._spread(self.backward_op, pack(call), list(results), given, needs)

    def _spread(
        self, op: Any, given: Any, results: list[Tensor], grads: list[Tensor | None], needs: Needs
    ) -> InputGradients:
        wanted = [needs[name] for name in INPUTS]
        found = iter(op(*given, results, grads, wanted))
        return tuple(next(found) if need else None for need in wanted)

    def _forward(self, *given: Any) -> tuple[Tensor, ...]:
        results = self.passes.forward(unpack(Arguments(*given)))
        return tuple(x.contiguous() for x in results)

    def _empty(self, *given: Any) -> tuple[Tensor, ...]:
        return tuple(self.passes.empty(unpack(Arguments(*given))))

    def _gradients(self, *given: Any) -> list[Tensor]:
        *arguments, results, grads, wanted = given
        call = unpack(Arguments(*arguments))
        flowing = dict(zip(self.passes.fields, grads, strict=True))
        needs = dict(zip(INPUTS, wanted, strict=True))
        found = self.passes.backward(call, self.passes.results(*results), flowing, needs)
        return [x.contiguous() for x in found if x is not None]

    def _empty_gradients(self, *given: Any) -> list[Tensor]:
        *arguments, _, _, wanted = given
        pairs = zip(arguments, wanted, strict=False)
        return [x.new_empty(x.shape) for x, need in pairs if need]

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.plain = [None if isinstance(x, Tensor) else x for x in inputs]
        tensors = [x if isinstance(x, Tensor) else None for x in inputs]
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(*(output[i] for i in self.passes.constant))
        ctx.set_materialize_grads(False)

    def _backward(self, ctx: Any, *grads: Tensor | None) -> Any:
        saved, count = ctx.saved_tensors, len(ctx.plain)
        pairs = zip(saved[:count], ctx.plain, strict=True)
        given = [x if x is not None else plain for x, plain in pairs]
        needs = dict(zip(INPUTS, ctx.needs_input_grad, strict=False))
        results = list(saved[count:])
        found = self._spread(self.backward_op, given, results, list(grads), needs)
        refused = once(self.passes.kernel, *found, anchors=(*saved, *grads))
        return *refused, *[None] * (count - len(INPUTS))


def _define(name: str, schema: str, function: Callable[..., Any]) -> Any:
    return torch.library.custom_op(f"attentropy::{name}", function, mutates_args=(), schema=schema)
