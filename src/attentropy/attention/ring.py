"""ring_attend(): attention whose sequence is spread over processes, with exact statistics.

Every rank holds some queries and some keys; keys and values travel, row states merge. What comes
out on a rank are the rows of its own queries, equal to those of attend() on the whole sequence.
"""

from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, Unpack
from zlib import crc32

import torch
from torch import Tensor

from attentropy.attention import attend as attention
from attentropy.attention.choice import check_name, choose
from attentropy.attention.hooks import changed, skipped
from attentropy.core.call import Call
from attentropy.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    AttentropyError,
    DistributedError,
    UnsupportedError,
)
from attentropy.core.masks import Mask
from attentropy.core.resolve import (
    FLOATS,
    AttendOptions,
    Options,
    Share,
    check_tensors,
    options_of,
    resolve,
)
from attentropy.core.results import Attended
from attentropy.core.weights import Decay, Gumbel, Hard, RowWeights
from attentropy.distributed import journey as ring
from attentropy.distributed.groups import Group, Peers, peers
from attentropy.distributed.layouts import Layout, contiguous
from attentropy.distributed.transport import GatherRoute, RingRoute
from attentropy.kernels.attended import attended

METHODS = ("auto", "ring", "gather")
GATHERED = 1 << 22
"""method="auto" gathers keys and values that take at most so many bytes in all."""


def ring_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: Group = None,
    layout: Layout = contiguous,
    method: str = "auto",
    kernel: str = "auto",
    **options: Unpack[AttendOptions],
) -> Attended:
    """attend() on a sequence that the ranks of a group share, each holding a part.

    Every rank calls it with the same options, and the gradients of what it returns must be asked
    for on every rank. Masks, biases and counts of visible keys are those of the whole sequence:
    `mask` and `bias` are asked by global indices, a tensor for either broadcasts to the global
    [B,H,Q,K], `stats.visible` and the scales count all keys, `stats.argmax` is a global index.
    The rows of a scale [B,H,Q] are those of this rank. Of the weights all but Hard, hard Gumbel,
    Decay and those of whole rows (Entmax, Sparsemax, Softpick) are served; noise and dropout are
    other draws than those of one process.

    Args:
        q: this rank's queries [B,H,Q,D]; lengths may differ by rank as `layout` has them.
        k: this rank's keys [B,Hk,K,D].
        v: this rank's values [B,Hk,K,Dv].
        group: a ProcessGroup, a DeviceMesh of one dimension, or None for the default group.
        layout: which positions a rank holds, `contiguous` or `zigzag`.
        method: "ring" passes blocks of keys from rank to rank and needs O(n / ranks) memory;
            "gather" collects all keys first; "auto" gathers what is small.
        kernel: as in attend(), for each block.
        options: mask, score, scale, weights, bias, softcap, sink and dropout, as in attend().

    Returns:
        Attended(out, stats) of this rank's queries. Gradients of what all ranks share (a bias, a
        sink, a table) are this rank's part: their sum over the group is the whole.
    """
    me = peers(group)
    how = {"layout": layout, "method": method, "kernel": kernel}
    run = partial(attention.run, kernel=kernel)

    def make(q: Tensor, k: Tensor, asked: Options) -> tuple[Call, ring.Journey]:
        queries, keys = _agree(me, q, k, v, asked, how)
        rows = layout.runs(queries, ranks=me.size, rank=me.rank)
        call = resolve(q, k, v, asked, share=Share(queries, keys, rows))
        gathers = _gathers(method, call.k, call.v, keys)
        route = (GatherRoute if gathers else RingRoute)(me, layout, keys)
        way = ring.journey(call, rows, shift=keys - queries, route=route, kernel=run)
        if kernel != "auto":
            _check_kernel(way, route, kernel)
        return call, way

    call, way = changed(q, k, options_of(options), make)
    return skipped("ring_attend()", lambda: attended(call, ring.attend(way)))


def _check_kernel(way: ring.Journey, route: GatherRoute | RingRoute, kernel: str) -> None:
    """Raise if the kernel does not serve this rank's own block, before anything is sent."""
    own = route.layout.runs(route.keys, ranks=route.peers.size, rank=route.peers.rank)
    for part in way.parts(own, way.call.k, way.call.v):
        choose(part.call, kernel)


def _gathers(method: str, k: Tensor, v: Tensor, keys: int) -> bool:
    if method != "auto":
        return method == "gather"
    per_key = k.shape[0] * k.shape[1] * (k.shape[3] + v.shape[3]) * k.element_size()
    return keys * per_key <= GATHERED


def _check(q: Tensor, k: Tensor, v: Tensor, options: Options, how: dict[str, Any]) -> None:
    """Raise on what one rank can see to be wrong by itself."""
    check_tensors(q, k, v)
    if not isinstance(how["layout"], Layout):
        raise ArgumentTypeError("layout", "contiguous or zigzag", repr(how["layout"]))
    if how["method"] not in METHODS:
        raise ArgumentError("method", f"one of {list(METHODS)}", repr(how["method"]))
    weights = options.weights
    if isinstance(weights, Hard | Decay | RowWeights) or (
        isinstance(weights, Gumbel) and weights.hard
    ):
        raise UnsupportedError(
            f"ring_attend does not support {type(weights).__name__} weights: what parts of the "
            "keys give does not merge"
        )
    check_name(how["kernel"])


def _agree(
    me: Peers, q: Tensor, k: Tensor, v: Tensor, options: Options, how: dict[str, Any]
) -> tuple[int, int]:
    """The global numbers of queries and keys; raises on every rank if one of them differs.

    One all_gather of a few integers: a wrong shape is an error here, not a hang in a hop.
    """
    try:
        _check(q, k, v, options, how)
        wrong, card = None, _card(q, k, v, options, how)
    except AttentropyError as error:
        wrong, card = error, {}
    device = q.device if isinstance(q, Tensor) else torch.device("cpu")
    values = [int(wrong is not None), *(card.get(name, 0) for name in _FIELDS)]
    cards = [x.tolist() for x in me.gather(torch.tensor(values, device=device))]
    if wrong is not None:
        raise wrong
    _compare(me, cards)
    columns = dict(zip(("refused", *_FIELDS), zip(*cards, strict=True), strict=True))
    for name in ("queries", "keys"):
        how["layout"].check_sizes(name, columns[name])
    return sum(columns["queries"]), sum(columns["keys"])


_SIZES = (
    "batch size",
    "heads of q",
    "heads of k",
    "width of k",
    "width of v",
    "dtype",
    "gradients",
)
_LENGTHS = ("queries", "keys")
_OPTIONS = (*Options._fields, "layout", "method", "kernel")
_FIELDS = (*_LENGTHS, *_SIZES, *_OPTIONS)


def _card(q: Tensor, k: Tensor, v: Tensor, options: Options, how: dict[str, Any]) -> dict[str, int]:
    """What ranks must have in common, as integers; and their lengths."""
    grads = sum(x.requires_grad << i for i, x in enumerate((q, k, v))) * torch.is_grad_enabled()
    dtype = FLOATS.index(q.dtype)
    sizes = (*q.shape[:2], k.shape[1], k.shape[3], v.shape[3], dtype, grads)
    given = {name: getattr(options, name) for name in Options._fields} | how
    if isinstance(options.scale, Tensor) and options.scale.dim() > 1:
        given["scale"] = options.scale.new_empty(0)  # its rows are those of the rank
    return {
        "queries": q.shape[2],
        "keys": k.shape[2],
        **dict(zip(_SIZES, sizes, strict=True)),
        **{name: crc32(_label(value).encode()) for name, value in given.items()},
    }


def _label(value: object) -> str:
    """A text that is the same on all ranks for the same option."""
    if isinstance(value, Mask | Layout):
        return value.name
    if isinstance(value, Tensor):
        return f"{list(value.shape)} {value.dtype}"
    if value is None or isinstance(value, int | float | str | tuple):
        return repr(value)
    if is_dataclass(value):
        inner = (_label(getattr(value, field.name)) for field in fields(value))
        return f"{type(value).__name__}({', '.join(inner)})"
    return type(value).__name__


def _compare(me: Peers, cards: list[list[int]]) -> None:
    for rank, (refused, *_) in enumerate(cards):
        if refused:
            raise DistributedError(
                f"rank {rank} of the group refused its arguments; its own message says why"
            )
    names = ("refused", *_FIELDS)
    for rank, card in enumerate(cards):
        for name, got, want in zip(names, card, cards[0], strict=True):
            if name not in _LENGTHS and got != want:
                raise DistributedError(_difference(name, rank, got, want))


def _difference(name: str, rank: int, got: int, want: int) -> str:
    if name in _OPTIONS:
        return f"ring_attend: rank {rank} was called with another {name} than rank 0"
    if name == "dtype":
        return f"ring_attend: dtype is {FLOATS[got]} on rank {rank}, {FLOATS[want]} on rank 0"
    if name == "gradients":
        return f"ring_attend: rank {rank} asks for other gradients of q, k and v than rank 0"
    return f"ring_attend: the {name} is {got} on rank {rank} and {want} on rank 0"
