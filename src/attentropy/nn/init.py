"""Initial weights of an attention layer, and the entropy they give.

With inputs of variance v in each of d_model entries, a weight of variance w gives queries and keys
the variance a = d_model * w * v, and logits scale * q . k the variance scale^2 * d_k * a^2.

Xavier's w = 2 / (d_in + d_out) on a projection from 512 to 64 makes that 3.16 and not 1, and
nearly 4 for many heads; `score_variance(1.0)` makes it 1 whatever the widths are.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from attentropy.core.scores import Cosine, Dot
from attentropy.core.weights import Softmax
from attentropy.nn._checks import count, number

if TYPE_CHECKING:
    from attentropy.nn.layers.multihead import MultiheadAttention

Initialise = Callable[["MultiheadAttention"], None]


@torch.no_grad()
def xavier(layer: "MultiheadAttention") -> None:
    """Uniform of variance 2 / (d_in + d_out) for each projection by itself; biases 0.

    torch initialises its packed projection as one matrix of 3 d_model rows, which makes queries
    and keys smaller.

    Args:
        layer: whose weights are drawn.
    """
    for weight in (layer.q_weight, layer.k_weight, layer.v_weight, layer.o_weight):
        nn.init.xavier_uniform_(weight)
    _zero_biases(layer)


def score_variance(value: float = 1.0, *, length: int = 1024, inputs: float = 1.0) -> Initialise:
    """Normal weights of queries and keys such that logits have variance `value`.

    Args:
        value: of the logits, at the layer's own scale.
        length: keys per row, for scales that depend on it.
        inputs: variance of the entries of the layer's inputs.

    Values and output are as in `xavier`.

    >>> import attentropy as at
    >>> layer = at.nn.MultiheadAttention(512, 8, init=at.nn.score_variance(1.0))
    """
    number("score_variance: value", value, above=0.0)
    number("score_variance: inputs", inputs, above=0.0)
    count("score_variance: length", length)

    @torch.no_grad()
    def initialise(layer: "MultiheadAttention") -> None:
        if not isinstance(layer.score, Dot) or layer.qk_norm is not None:
            raise UnsupportedError(
                "score_variance needs the dot score without qk_norm: otherwise the projections "
                "do not set the variance of the logits"
            )
        xavier(layer)
        scale = float(layer.logit_scale(length).mean())
        if scale == 0:
            raise ArgumentError("the scale of the layer", f"not 0 at length {length}", scale)
        wanted = value**0.5 / (abs(scale) * layer.head_dim**0.5)
        for weight in (layer.q_weight, layer.k_weight):
            nn.init.normal_(weight, std=(wanted / (weight.shape[1] * inputs)) ** 0.5)

    return initialise


@torch.no_grad()
def logit_spread(layer: "MultiheadAttention", n: int, *, inputs: float = 1.0) -> Tensor:
    """Standard deviation of a row's logits over its keys, root mean square over queries, [H].

    For independent Gaussian inputs of variance v and weights W_Q, W_K, b_Q of a head:
    scale^2 v tr(W_K W_K^T (v W_Q W_Q^T + b_Q b_Q^T)); the bias of keys shifts whole rows and
    drops out. With qk_norm it is scale^2 sum_i (g_i h_i)^2 for gains g, h; with the cosine score
    scale^2 / d.

    Args:
        layer: a MultiheadAttention or EntropyInvariantAttention.
        n: visible keys of a row.
        inputs: variance of the entries of the layer's inputs.
    """
    count("n", n)
    number("inputs", inputs, above=0.0)
    _check_softmax(layer)
    scale = layer.logit_scale(n)
    if isinstance(layer.score, Cosine):
        return scale * layer.head_dim**-0.5
    if not isinstance(layer.score, Dot):
        raise UnsupportedError(f"no closed form for the spread of {type(layer.score).__name__}")
    if layer.qk_norm is not None:
        gains = layer.qk_norm.q.weight * layer.qk_norm.k.weight
        return scale * gains.square().sum().sqrt()
    return scale * _projected(layer, inputs).sqrt()


def _check_softmax(layer: nn.Module) -> None:
    if not hasattr(layer, "logit_scale"):
        rule = "a MultiheadAttention or EntropyInvariantAttention of attentropy.nn"
        raise ArgumentTypeError("layer", rule, type(layer).__name__)
    weights = getattr(layer, "weights", None)
    if weights is not None and not isinstance(weights, Softmax):
        raise UnsupportedError(f"the entropy of {weights} does not follow from the logits")


def _projected(layer: "MultiheadAttention", inputs: float) -> Tensor:
    """The variance of q . k over keys, mean over queries, [H]."""
    group = layer.num_heads // layer.num_kv_heads
    q = layer.q_weight.unflatten(0, (layer.num_heads, -1)).double()
    k = layer.k_weight.unflatten(0, (layer.num_kv_heads, -1)).double()
    keys = inputs * (k @ k.mT).repeat_interleave(group, 0)
    queries = inputs * (q @ q.mT)
    if layer.q_bias is not None:
        b = layer.q_bias.unflatten(0, (layer.num_heads, -1)).double()
        queries = queries + b[:, :, None] * b[:, None]
    return (keys * queries).sum((1, 2)).to(layer.q_weight.dtype)


def expected_entropy(layer: "MultiheadAttention", n: int, *, inputs: float = 1.0) -> Tensor:
    """Expected entropy of rows of n keys with these weights, by theory, in nats, [H].

    Rows are taken as Gaussian with the spread of `logit_spread`, for which the expected entropy is
    exact. Positions and biases on the logits are left out.

    Args:
        layer: a MultiheadAttention or EntropyInvariantAttention.
        n: visible keys of a row.
        inputs: variance of the entries of the layer's inputs.

    >>> import attentropy as at
    >>> layer = at.nn.MultiheadAttention(512, 8, init=at.nn.score_variance(1.0))
    >>> at.nn.expected_entropy(layer, 1024).shape
    torch.Size([8])
    """
    from attentropy.theory.gaussian import expected_entropy as of_gaussian

    spread = logit_spread(layer, n, inputs=inputs)
    values = [float(of_gaussian(n, float(x))) for x in spread]
    return torch.tensor(values, dtype=spread.dtype, device=spread.device)


def _zero_biases(layer: "MultiheadAttention") -> None:
    for bias in (layer.q_bias, layer.k_bias, layer.v_bias, layer.o_bias):
        if bias is not None:
            nn.init.zeros_(bias)
