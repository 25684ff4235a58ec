"""Which attention ran: all operators of one forward pass, seen below Python.

Functions that are bound early, or that compute a softmax in other ways, avoid the patches. The
first forward pass of each kind therefore runs under a Census, which sees the operators of torch. It
finds attention that was not recorded, and follows the weights of each softmax: those that are never
summed over keys in a matrix product are not attention. Of a module that is given two
sequences it finds out whether queries and keys are computed from the same one.
"""

import sys
import threading
import weakref
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attentropy.models.intercept.tracking import STATE, current, owner_of

PRODUCTS = {"bmm": 0, "mm": 0, "baddbmm": 1, "addmm": 1}  # place of the first factor
SOFTMAX = ("_softmax", "_safe_softmax")
CARRY = {
    "mul", "mul_", "div", "div_", "add", "add_", "sub", "masked_fill", "masked_fill_", "where",
    "clone", "_to_copy", "copy_", "native_dropout", "nan_to_num", "constant_pad_nd", "cat", "stack",
    "index", "index_select", "gather", "scatter", "bernoulli", "rsub", "tril", "triu", "repeat",
    "_unsafe_view", "as_strided", "slice_scatter", "select_scatter", "index_put", "index_put_",
    "flip", "roll", "clamp", "relu",
}  # fmt: skip
MOST_SINKS = 16  # columns that may be joined to logits without being keys
QUOTIENTS = ("div", "div_", "mul")
EXPONENTIALS = ("exp", "exp_", "exp2", "exp2_")
MASKINGS = ("masked_fill", "masked_fill_", "where", "tril", "triu", "clone", "_to_copy")
ATTENTION = ("scaled_dot_product", "multi_head_attention", "flash", "flex_attention", "attention")


Sinks = tuple[int, int]
"""Numbers of columns in front of the keys, and behind them."""
Sources = frozenset[tuple[int, int]]
"""Calls of modules by number, each with the place of one of its two inputs."""


@dataclass(eq=False)
class Softmaxed:
    """A softmax that ran.

    Attributes:
        module: the innermost tracked module.
        how: the way in which it was computed, in words.
        span: the most that a product with values may sum over.
        record: records it; None if it slipped by.
        way: what tells softmax calls of the module apart.
        sinks: columns in front of the keys and behind them that may not be keys.
        keys: number of columns that are, or may be, sinks too.
        sums: lengths over which its weights were summed in matrix products.
    """

    module: nn.Module | None
    how: str
    span: int
    record: Callable[[], None] | None = None
    way: Hashable = None
    sinks: Sinks = (0, 0)
    keys: int = 0
    sums: set[int] = field(default_factory=set)

    @property
    def used(self) -> bool:
        """Were its weights summed over keys in a matrix product?"""
        return bool(self.sums)

    @property
    def has_sinks(self) -> bool:
        """Were the columns of possible sinks left out of every product?"""
        apart = sum(self.sinks)
        whole = {self.keys, apart} & self.sums
        return bool(apart) and self.keys - apart in self.sums and not whole


class Census(TorchDispatchMode):
    """Follows weights from each softmax to a product, and notes attention that was missed."""

    supports_higher_order_operators = True
    lets_kernels_be = True  # under checkpointing, a recomputation without it must do the same

    @classmethod
    def is_infra_mode(cls) -> bool:
        """torch.compile refuses to run under other modes."""
        return True

    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()
        self.found: list[Softmaxed] = []
        self.kernels: list[tuple[nn.Module, str]] = []
        self._marks: dict[int, tuple[StorageWeakRef, dict[Softmaxed, int]]] = {}
        self._logs: dict[int, StorageWeakRef] = {}
        self._exps: dict[int, tuple[StorageWeakRef, Softmaxed]] = {}
        self._joined: dict[int, tuple[StorageWeakRef, Sinks]] = {}
        self._sources: dict[int, tuple[StorageWeakRef, Sources]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: torch would import its compiler, which takes seconds, to keep it away from us."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        run = self._run_uncompiled if "torch._dynamo" in sys.modules else self._run
        return run(func, args, kwargs)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        out = func(*args, **(kwargs or {}))
        if not STATE.computing:
            with suppress(Exception):  # nothing of ours may end a forward pass of the user
                self._see(func, args, kwargs, out)
        return out

    _run_uncompiled = torch._disable_dynamo(_run, recursive=True)

    @property
    def is_own(self) -> bool:
        """Does it follow the operators of the thread that asks?"""
        return self.thread == threading.get_ident()

    def softmax(self, weights: Tensor, one: Softmaxed) -> None:
        """Follow the weights of a softmax.

        Args:
            weights: its result.
            one: what is known of it.
        """
        self.found.append(one)
        self._mark(weights, {one: one.span})

    def slipped(self) -> list[tuple[nn.Module, str]]:
        """Modules whose attention was not seen, and how they attend."""
        softmax = [
            (one.module, one.how)
            for one in self.found
            if one.used and one.record is None and one.module is not None
        ]
        return [*softmax, *self.kernels]

    def _see(self, func: Any, args: tuple[Any, ...], kwargs: Any, out: Any) -> None:
        name = getattr(getattr(func, "overloadpacket", func), "__name__", str(func))
        result = out[0] if isinstance(out, tuple | list) and out else out
        if not isinstance(result, Tensor):
            return
        pair = _pair()
        if pair is not None:
            self._follow(pair, name, args, result)
        if name in SOFTMAX:
            self._slipped(result, args, "a softmax bound early")
        elif name == "_log_softmax":
            self._logs[_key(result)] = StorageWeakRef(result.untyped_storage())
        elif name in EXPONENTIALS:
            self._exp(args[0], result)
        elif name == "sum":
            self._sum(args)
        elif name in PRODUCTS:
            self._product(args[PRODUCTS[name] :][:2])
        elif name in CARRY:
            self._carry(name, args, result)
        elif _is_kernel(name):
            self._kernel(func, name)

    def _slipped(self, weights: Tensor, args: tuple[Any, ...], how: str) -> None:
        dim = args[1] if len(args) > 1 and isinstance(args[1], int) else -1
        # over one key there is no choice to make
        if STATE.held is None and weights.shape[dim] > 1:
            self.softmax(weights, Softmaxed(current(), how, span_of(weights, dim)))

    def _exp(self, x: Tensor, out: Tensor) -> None:
        if x.dim() < 2 or not x.is_floating_point():
            return
        if _key(x) in self._logs:
            self._slipped(out, (), "log_softmax(...).exp()")
        elif _is_softmax(out):
            self._slipped(out, (), "exp(s - logsumexp(s))")
        elif STATE.held is None:
            one = Softmaxed(current(), "exp(s), divided by its sum later", out.shape[-1])
            self._exps[_key(out)] = StorageWeakRef(out.untyped_storage()), one

    def _sum(self, args: tuple[Any, ...]) -> None:
        """Exponentials that are summed over keys are weights, if they are multiplied by values."""
        one, dims = self._exponential(args[0]), args[1] if len(args) > 1 else None
        if one is None or one in self.found or not isinstance(dims, list | tuple):
            return
        if len(dims) == 1 and dims[0] % args[0].dim() == args[0].dim() - 1:
            self.found.append(one)

    def _exponential(self, x: Any) -> Softmaxed | None:
        """The softmax that a tensor of exponentials may belong to."""
        known = self._exps.get(_key(x)) if isinstance(x, Tensor) and x.dim() > 2 else None
        return None if known is None else known[1]

    def _product(self, factors: tuple[Any, ...]) -> None:
        """A product sums over the last dimension of its first factor.

        Weights may come without a sink, or in pieces that are multiplied by values of their own.
        A product with a parameter is a layer, and sums no values.
        """
        left, right = factors
        if not any(isinstance(x, nn.Parameter) for f in factors for x in (f, f._base)):
            for one, span in (*self._of(left).items(), *self._of(right).items()):
                if left.shape[-1] <= span:
                    one.sums.add(left.shape[-1])
            later = self._exponential(left)
            if later is not None and left.shape[-1] == later.span > 1:
                later.sums.add(later.span)

    def _carry(self, name: str, args: tuple[Any, ...], out: Tensor) -> None:
        given = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
        self._join(name, args, given, out)
        carried: dict[Softmaxed, int] = {}
        for x in given:
            for one, span in self._of(x).items():
                grown = name == "constant_pad_nd" and x.shape[-1] <= span
                carried[one] = max(carried.get(one, 0), out.shape[-1] if grown else span)
        if carried:
            self._mark(out, carried)
        elif name in QUOTIENTS and self._exponential(given[0]) and _is_softmax(out):
            self._slipped(out, (), "exp(s) / sum(exp(s))")
        elif name in MASKINGS:
            for found in filter(None, map(self._exponential, given)):
                self._exps[_key(out)] = StorageWeakRef(out.untyped_storage()), found

    def _join(self, name: str, args: tuple[Any, ...], given: list[Tensor], out: Tensor) -> None:
        """Follow logits to which a few columns were joined, which may be sinks."""
        if name == "cat" and len(args) > 1 and args[1] % out.dim() == out.dim() - 1:
            sinks = _ends([x.shape[-1] for x in given])
        else:
            same = (x for x in given if x.shape[-1:] == out.shape[-1:])
            sinks = next((s for x in same if sum(s := self.sinks_of(x))), (0, 0))
        if sum(sinks):
            self._joined[_key(out)] = StorageWeakRef(out.untyped_storage()), sinks

    def sinks_of(self, logits: Tensor) -> Sinks:
        """Columns in front of the keys and behind them that were joined to logits.

        Args:
            logits: of a softmax.
        """
        known = self._joined.get(_key(logits))
        return (0, 0) if known is None else known[1]

    def _follow(self, pair: "_TwoInputs", name: str, args: tuple[Any, ...], out: Tensor) -> None:
        """Follow two inputs to the queries and keys of the running module."""
        given = [x for x in tree_leaves(args) if isinstance(x, Tensor)]
        sources = [self._sources_of(pair, x) for x in given]
        is_product = name in PRODUCTS and not any(isinstance(x, nn.Parameter) for x in given)
        module = current()
        if module is not None and module not in _apart and (is_product or _is_kernel(name)):
            first, second = sources[PRODUCTS.get(name, 0) :][:2]
            if first and second:
                _apart[module] = first.isdisjoint(second)
        ref = StorageWeakRef(out.untyped_storage())
        self._sources[_key(out)] = ref, frozenset[tuple[int, int]]().union(*sources)

    def _sources_of(self, pair: "_TwoInputs", x: Tensor) -> Sources:
        """From which of the two inputs a tensor is computed."""
        key = _key(x)
        if key in pair.inputs:
            return frozenset(((pair.call, pair.inputs.index(key)),))
        _, sources = self._sources.get(key, (None, frozenset[tuple[int, int]]()))
        return frozenset(one for one in sources if one[0] == pair.call)

    def _kernel(self, func: Any, name: str) -> None:
        module = current()
        if module is not None and STATE.held is None:
            space = getattr(func, "namespace", "")
            self.kernels.append((module, name if space in ("", "aten") else f"{space}::{name}"))

    def _mark(self, x: Tensor, spans: dict[Softmaxed, int]) -> None:
        key = _key(x)
        known = self._marks.get(key)
        if known is None:
            known = self._marks[key] = StorageWeakRef(x.untyped_storage()), {}
        for one, span in spans.items():
            known[1][one] = max(known[1].get(one, 0), span)

    def _of(self, x: Any) -> dict[Softmaxed, int]:
        """Softmaxes whose weights are in a tensor, and the most that a product may sum over."""
        if not isinstance(x, Tensor) or not self._marks:
            return {}
        known = self._marks.get(_key(x))
        return {} if known is None else known[1]


class _TwoInputs(NamedTuple):
    """The two sequences that a running module is given.

    Attributes:
        call: number of its call.
        inputs: storages of the two.
    """

    call: int
    inputs: tuple[int, ...]


def _pair() -> _TwoInputs | None:
    """The inputs of the innermost running module that has two, not queries, keys and values."""
    for module in reversed(STATE.running):
        owner = owner_of(module)
        if owner is None:
            continue
        args, kwargs = owner.given
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        both = {id(x): x for x in given if x.dim() == 3 and x.is_floating_point()}
        inputs = tuple(_key(x) for x in both.values())
        if len(inputs) == len(set(inputs)) == 2:
            return _TwoInputs(id(owner.given), inputs)
    return None


def _is_kernel(name: str) -> bool:
    return any(part in name for part in ATTENTION) and "backward" not in name


def _ends(widths: list[int]) -> Sinks:
    """Columns in front of the widest of several parts and behind it; none if they are many."""
    place = widths.index(max(widths))
    ends = sum(widths[:place]), sum(widths[place + 1 :])
    return ends if sum(ends) <= min(MOST_SINKS, max(widths)) else (0, 0)


def _is_softmax(x: Tensor) -> bool:
    """Do rows of several numbers add up to one?"""
    if x.dim() < 3 or x.shape[-1] < 2 or not x.numel():
        return False
    total = x.detach().sum(-1, dtype=torch.float64)
    total = total[~total.isnan()]  # of rows that see nothing
    return bool(total.numel()) and bool((total - 1).abs().amax() < 1e-4)


def span_of(weights: Tensor, dim: int) -> int:
    """The most that a product of weights with values may sum over.

    Weights that share the queries out among keys, as groups of tokens do, sum over the queries.

    Args:
        weights: of a softmax.
        dim: over which it was taken.
    """
    size = weights.shape[dim]
    return size if dim % weights.dim() == weights.dim() - 1 else max(size, weights.shape[-1])


def _key(x: Tensor) -> int:
    """A storage; its number is not given to another one while it is referred to, even weakly."""
    return int(x.untyped_storage()._cdata)


_counted: "weakref.WeakKeyDictionary[nn.Module, set[Hashable]]" = weakref.WeakKeyDictionary()
_uses: "weakref.WeakKeyDictionary[nn.Module, dict[Hashable, tuple[bool, Sinks]]]" = (
    weakref.WeakKeyDictionary()
)
_slips: "weakref.WeakKeyDictionary[nn.Module, str]" = weakref.WeakKeyDictionary()
_apart: "weakref.WeakKeyDictionary[nn.Module, bool]" = weakref.WeakKeyDictionary()


def learn(one: Softmaxed) -> None:
    """Remember whether a softmax of a module is attention.

    Args:
        one: what a census has found of it.
    """
    if one.module is not None and one.way is not None:
        sinks = one.sinks if one.has_sinks else (0, 0)
        _uses.setdefault(one.module, {})[one.way] = one.used, sinks


def is_used(module: nn.Module, way: Hashable) -> bool | None:
    """Is a softmax of a module attention? None if no census has seen it.

    Args:
        module: computes the softmax.
        way: what tells its softmax calls apart.
    """
    known = _uses.get(module, {}).get(way)
    return None if known is None else known[0]


def sinks_of(module: nn.Module, way: Hashable) -> Sinks:
    """Columns in front of the keys and behind them that are not keys, as a census has learned.

    Args:
        module: computes the softmax.
        way: what tells its softmax calls apart.
    """
    known = _uses.get(module, {}).get(way)
    return (0, 0) if known is None else known[1]


def slip(module: nn.Module, how: str) -> None:
    """Remember that the attention of a module is not seen.

    Args:
        module: the module.
        how: the way in which it attends, in words.
    """
    _slips[module] = how


def slip_of(module: nn.Module) -> str | None:
    """How a module attends without being seen; None if nothing is known about it.

    Args:
        module: the module.
    """
    return _slips.get(module)


def is_apart(module: nn.Module) -> bool | None:
    """Are queries and keys of a module computed from different inputs? None if it is not known.

    Args:
        module: computes attention.
    """
    return _apart.get(module)


def is_new(model: nn.Module, args: Any, kwargs: Any, *, reader: Hashable = "watch") -> bool:
    """Has no census been taken of calls of this kind? It counts as taken from then on.

    Args:
        model: the whole model.
        args: positional arguments of its call.
        kwargs: keyword arguments of its call.
        reader: who learns from it.
    """
    given = (*enumerate(args), *kwargs.items())
    kind = (reader, model.training, torch.is_grad_enabled(), tuple(_kind(k, x) for k, x in given))
    known = _counted.get(model)
    if known is not None and kind in known:
        return False
    _counted.setdefault(model, set()).add(kind)
    return True


def _kind(name: Any, x: Any) -> Hashable:
    if not isinstance(x, Tensor):
        return name, type(x).__name__, x if isinstance(x, bool | str) else x is None
    return name, x.dtype, tuple(size == 1 for size in x.shape)
