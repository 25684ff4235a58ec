"""From logits to weights, for every kind that is a function of them, and their derivatives."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from attentropy.core.call import Call
from attentropy.core.errors import UnsupportedError
from attentropy.core.resolve import AttendOptions
from attentropy.core.weights import (
    L1,
    L2,
    Decay,
    Gumbel,
    Hard,
    Kernelised,
    ReluSquared,
    RowWeights,
    Softmax,
    Weights,
    own,
    squares,
)

Weigh = Callable[[Tensor, Tensor], Tensor]  # logits [H,R,K], visible keys [H,R] -> weights
_NO_FUNCTION = {
    Gumbel: "are drawn anew each time, so that a change of the output says nothing of the scores",
    Kernelised: "have no logits",
    Decay: "have no logits",
}


def kind_of(options: AttendOptions) -> Weights:
    """The weights of a call; raises for those that are not a function of logits.

    Args:
        options: those of attend().
    """
    weights = options.get("weights") or Softmax()
    for kind, why in _NO_FUNCTION.items():
        if isinstance(weights, kind):
            raise UnsupportedError(f"analysis takes weights that logits decide; {weights} {why}")
    return weights


def only_softmax(options: AttendOptions, function: str) -> None:
    """Raise unless the weights are softmax.

    Args:
        options: those of attend().
        function: name of the function that needs this, for the message.
    """
    weights = kind_of(options)
    if not isinstance(weights, Softmax):
        raise UnsupportedError(f"{function} is a property of Softmax weights, not of {weights}")


def only_probabilities(options: AttendOptions, function: str) -> None:
    """Raise unless the weights are probabilities.

    Args:
        options: those of attend().
        function: name of the function that needs this, for the message.
    """
    weights = kind_of(options)
    if not weights.probabilities:
        raise UnsupportedError(f"{function} needs probabilities, which {weights} are not")


def weighing(call: Call) -> Weigh:
    """The function from logits (-inf where hidden) to weights, 0 where hidden.

    Args:
        call: a resolved call.
    """
    weights = call.weights
    if isinstance(weights, Softmax):
        return lambda s, visible: _softmax(s, call.sink)
    if isinstance(weights, RowWeights):
        return lambda s, visible: weights.of_rows(s).masked_fill(s.isneginf(), 0.0)
    if isinstance(weights, Hard):
        return lambda s, visible: _hard(s)
    single = own(weights)

    def weigh(s: Tensor, visible: Tensor) -> Tensor:
        hidden = s.isneginf()
        s = s.masked_fill(hidden, 0.0)
        f = single(s) if single is not None else s.relu().square() if squares(weights) else s
        f = f.masked_fill(hidden, 0.0)
        return f / _size(weights, f, visible)

    return weigh


def _softmax(s: Tensor, sink: Tensor | None) -> Tensor:
    lse = s.logsumexp(-1, keepdim=True)
    if sink is not None:
        lse = torch.logaddexp(lse, sink.detach().double().view(-1, 1, 1))
    return (s - lse.masked_fill(lse.isneginf(), 0.0)).exp()


def _hard(s: Tensor) -> Tensor:
    one_hot = torch.nn.functional.one_hot(s.argmax(-1), s.shape[-1]).to(s.dtype)
    return one_hot.masked_fill(s.isneginf(), 0.0)


def _size(weights: Weights, f: Tensor, visible: Tensor) -> Tensor:
    """What a row of unnormalised weights is divided by; 1 where that would be 0."""
    if isinstance(weights, L1):
        size = f.abs().sum(-1, keepdim=True)
    elif isinstance(weights, L2):
        square = f.square().sum(-1, keepdim=True)
        size = square.masked_fill(square == 0, 1.0).sqrt()
    elif isinstance(weights, ReluSquared):
        size = visible[..., None].to(f.dtype)
    else:
        return torch.ones_like(f[..., :1])
    return size.masked_fill(size == 0, 1.0)


def pulled(weigh: Callable[[Tensor], Tensor], s: Tensor, values: Tensor, w: Tensor) -> Tensor:
    """d <out, w> / d logits at the logits s, [H,R,K]; 0 at hidden keys.

    Args:
        weigh: from logits to weights.
        s: logits [H,R,K].
        values: [H,K,Dv].
        w: a direction of the output [H,R,Dv].
    """
    with torch.enable_grad():
        free = s.detach().requires_grad_()
        along = ((weigh(free) @ values) * w).sum()
        (found,) = torch.autograd.grad(along, free)
    return found.masked_fill(s.isneginf(), 0.0)


def derivatives(weigh: Callable[[Tensor], Tensor], s: Tensor, values: Tensor) -> Iterator[Tensor]:
    """d out_a / d logits for each coordinate a of the output, [H,R,K] each.

    Args:
        weigh: from logits to weights.
        s: logits [H,R,K].
        values: [H,K,Dv].
    """
    for a in range(values.shape[-1]):
        w = torch.zeros(*s.shape[:2], values.shape[-1], dtype=s.dtype, device=s.device)
        w[..., a] = 1.0
        yield pulled(weigh, s, values, w)
