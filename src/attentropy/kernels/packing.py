"""A call as the arguments of a torch operator, and back: the one list of its fields.

Operators take tensors, numbers and text. So a mask is given as bounds and a table, and weights as
text; everything else of a call stands as it is.
"""

from typing import NamedTuple, get_type_hints

from torch import Tensor

from attentropy.core.call import Call
from attentropy.core.errors import UnsupportedError
from attentropy.core.masks.extent import Extent
from attentropy.core.visibility import Visibility
from attentropy.core.weights import (
    L1,
    L2,
    Decay,
    Gumbel,
    Hard,
    Kernelised,
    Linear,
    ReluSquared,
    Softmax,
    Weights,
    own,
)

INPUTS = ("q", "k", "v", "scale", "bias", "relative", "additive")
"""Fields of a call that gradients flow to."""

_INNER: dict[str, Linear | ReluSquared] = {"Linear": Linear(), "ReluSquared": ReluSquared()}
_TYPES = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    float: "float",
    float | None: "float?",
    str: "str",
}


class Arguments(NamedTuple):
    """The arguments of an operator: INPUTS first, then what has no gradient."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: Tensor
    bias: Tensor | None
    relative: Tensor | None
    additive: Tensor | None
    visible: Tensor
    lo: Tensor | None
    hi: Tensor | None
    table: Tensor | None
    slopes: Tensor | None
    seed: Tensor | None
    softcap: float | None
    dropout: float
    weights: str
    asked: str


def schema() -> str:
    """The arguments in the language of torch's operator schemas.

    >>> schema()[:40]
    'Tensor q, Tensor k, Tensor v, Tensor sca'
    """
    kinds = get_type_hints(Arguments)
    return ", ".join(f"{_TYPES[kinds[name]]} {name}" for name in Arguments._fields)


def pack(call: Call) -> Arguments:
    """The arguments of a call; a mask that is neither bounds nor a table becomes a table.

    Args:
        call: a resolved call.
    """
    seen = call.seen if call.seen.predicate is None else call.seen.tabled()
    return Arguments(
        q=call.q,
        k=call.k,
        v=call.v,
        scale=call.scale,
        bias=call.bias,
        relative=call.relative,
        additive=call.additive,
        visible=call.visible,
        lo=seen.lo,
        hi=seen.hi,
        table=seen.table,
        slopes=call.slopes,
        seed=call.seed,
        softcap=call.softcap,
        dropout=call.dropout,
        weights=encode(call.weights),
        asked=" ".join(sorted(call.computed)),
    )


def unpack(given: Arguments) -> Call:
    """The call that has these arguments.

    Args:
        given: arguments of an operator.
    """
    batch, heads, queries, _ = given.q.shape
    extent = Extent(batch, heads, queries, given.k.shape[2], given.q.device)
    seen = Visibility(
        extent, given.lo, given.hi, given.table, added=given.bias, counted=given.visible
    )
    kept = {name: x for name, x in given._asdict().items() if name in Call._fields}
    asked = frozenset(given.asked.split())
    return Call(**kept | {"weights": decode(given.weights), "seen": seen, "asked": asked})


def encode(weights: Weights) -> str:
    """Weights as text, without what acts outside operators.

    Args:
        weights: of a call.
    """
    if own(weights) is not None:
        raise UnsupportedError(
            "weights of your own cannot be recorded as an operator; kernel='reference' serves them "
            "under torch.compile"
        )
    match weights:
        case Gumbel():
            return f"Gumbel {weights.tau}"
        case L1() | L2():
            return f"{type(weights).__name__} {type(weights.of).__name__}"
        case Decay():
            if isinstance(weights.rate, Tensor):
                raise UnsupportedError(
                    "torch.compile of Decay with a tensor of rates is supported for full and "
                    "causal masks only"
                )
            return f"Decay {weights.rate}"
        case _:
            return type(weights).__name__


def decode(text: str) -> Weights:
    """The inverse of `encode`; Hard and Kernelised come back as what sums like them.

    Args:
        text: what `encode` gave.
    """
    name, *rest = text.split()
    match name:
        case "Gumbel":
            return Gumbel(float(rest[0]))
        case "L1":
            return L1(_INNER[rest[0]])
        case "L2":
            return L2(_INNER[rest[0]])
        case "Decay":
            return Decay(float(rest[0]))
        case "Linear" | "ReluSquared":
            return _INNER[name]
        case _:
            return {"Softmax": Softmax, "Hard": Hard, "Kernelised": Kernelised}[name]()
