"""One attention call after validation: what every kernel receives, and what it gives back.

Final logits of query i and key j, with x the score (dot product, or `additive . tanh(q + k)`):

    s_ij = softcap * tanh(scale_i * x_ij / softcap) + bias_ij + relative[d] - slope * |d|

where d = j - (i + K - Q) is the signed distance of the key from the query, queries being aligned
to the end of the keys. Without softcap the first term is scale_i * x_ij. Which keys are visible
is said by `seen`; a bias of -inf hides its key.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from attentropy.core.masks.extent import Extent
from attentropy.core.results import COMPUTED
from attentropy.core.visibility import Visibility
from attentropy.core.weights import Weights, squares


class Call(NamedTuple):
    """One attention call: tensors, and everything that turns them into weights.

    Attributes:
        q: queries [B,H,Q,D], ready for the product.
        k: keys [B,Hk,K,D]; Hk divides H.
        v: values [B,Hk,K,Dv].
        scale: broadcastable to [B,H,Q], float32 (float64 for float64 inputs); differentiable.
        bias: 4-D and broadcastable to [B,H,Q,K]; -inf hides the key; differentiable.
        relative: [1 or H, 2R+1], added at distance clip(d, -R, R) + R; differentiable.
        slopes: [H], ALiBi.
        softcap: positive, or None.
        sink: [H], the logit of one more outcome that has no value; differentiable.
        additive: [1 or H, D], the vector of the additive score; None means dot product.
        weights: how logits become weights.
        dropout: share of weights dropped after the statistics.
        seed: int64 scalar on the CPU, where there is dropout or noise; the backward pass draws
            the same from it.
        seen: which keys each row sees, and their number.
        asked: the statistics to compute; see attentropy.core.results.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: Tensor
    weights: Weights
    seen: Visibility
    bias: Tensor | None = None
    relative: Tensor | None = None
    slopes: Tensor | None = None
    softcap: float | None = None
    sink: Tensor | None = None
    additive: Tensor | None = None
    dropout: float = 0.0
    seed: Tensor | None = None
    asked: frozenset[str] = COMPUTED

    @property
    def computed(self) -> frozenset[str]:
        """The statistics that a kernel computes: a sink joins all of them."""
        return self.asked if self.sink is None else COMPUTED

    @property
    def visible(self) -> Tensor:
        """Number of visible keys of each row, int64, broadcastable to [B,H,Q]."""
        return self.seen.visible

    @property
    def extent(self) -> Extent:
        """B, H, Q, K and the device."""
        return self.seen.extent


class Rows(NamedTuple):
    """What a kernel returns: the output and the statistics of every row, each [B,H,Q].

    Statistics are float32, or float64 for float64 inputs.

    Attributes:
        out: [B,H,Q,Dv], of the dtype of v.
        entropy: None where the weights are not probabilities.
        lse: log of the sum of e^s; None where the weights are not probabilities.
        max_logit: None from kernels that never form logits, like `argmax`.
        argmax: the key that has the largest logit, -1 for a row that sees nothing.
        collision: sum of squared weights.
        mass: sum of |weights|; None for probabilities.
        log_l: log of the sum of e^(s - max_logit), which lse has only to the rounding of large
            logits; None where it is not known.
        varentropy: sum p (log p + entropy)^2; None where the weights are not probabilities.
    """

    out: Tensor
    entropy: Tensor | None
    lse: Tensor | None
    max_logit: Tensor | None
    argmax: Tensor | None
    collision: Tensor
    mass: Tensor | None = None
    log_l: Tensor | None = None
    varentropy: Tensor | None = None


def replace_tensors(call: Call, tensors: dict[str, Tensor | None]) -> Call:
    """A call with other tensors.

    Args:
        call: any call.
        tensors: new values by the names of fields.
    """
    return call._replace(**tensors)  # type: ignore[arg-type]


def is_noise(call: Call, norm_BHQ: Tensor) -> Tensor:
    """Whether a row of weights is no larger than the rounding of scores that are 0, bool [B,H,Q].

    L1 and L2 would blow such a row up to the size of any other. Scores are sums of D products in
    float64, so the weights of such a row are at most D eps |scale| max |q| max |k| each.

    Args:
        call: a resolved call.
        norm_BHQ: sqrt(sum f^2) of the unnormalised weights f of each row.
    """
    q, k = (_largest(x) for x in (call.q, call.k))
    if call.additive is not None:
        product = call.additive.detach().double().abs().sum(-1).view(1, -1, 1)
    else:
        key_heads = k.amax(2, keepdim=True).repeat_interleave(q.shape[1] // k.shape[1], 1)
        product = q * key_heads * q.new_tensor(call.q.shape[3])
    least = call.scale.detach().double().abs() * product * torch.finfo(torch.float64).eps
    least = least.square() if squares(call.weights) else least
    return norm_BHQ <= least * call.k.shape[2] ** 0.5


def _largest(x_BHND: Tensor) -> Tensor:
    """The largest |x| of each row in float64, NaN and infinities apart, [B,H,N]."""
    return x_BHND.detach().double().nan_to_num(0.0, 0.0, 0.0).abs().amax(-1)
