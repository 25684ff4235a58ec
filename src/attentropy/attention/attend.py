"""attend(): validate, choose a kernel, run it. The only way to compute attention here.

>>> import torch, attentropy as at
>>> q, k, v = (torch.ones(1, 1, 4, 8) for _ in range(3))
>>> out, stats = at.attend(q, k, v, mask=at.causal)
>>> stats.perplexity.round(decimals=4)
tensor([[[1., 2., 3., 4.]]])
"""

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from attentropy.attention.choice import choose
from attentropy.attention.hooks import changed, installed, recorded
from attentropy.attention.plans import find, kind_of, note
from attentropy.core.call import Call, Rows, replace_tensors
from attentropy.core.masks import Mask
from attentropy.core.resolve import Options, resolve
from attentropy.core.results import Attended
from attentropy.core.scales import ScaleRule
from attentropy.core.scores import ALiBi, Relative, Score
from attentropy.core.weights import RowWeights, Weights
from attentropy.kernels.attended import attended


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Tensor | Callable[..., Tensor] | None = None,
    score: Score | None = None,
    scale: ScaleRule | float | Tensor | None = None,
    weights: Weights | None = None,
    bias: Tensor | Relative | ALiBi | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    dropout: float = 0.0,
    stats: str | Iterable[str] = "all",
    kernel: str = "auto",
) -> Attended:
    """sum_j w_ij v_j with w = weights(softcap(scale * score(q, k)) + bias), masked; and statistics.

    Args:
        q: queries [B,H,Q,D].
        k: keys [B,Hk,K,D]; Hk divides H.
        v: values [B,Hk,K,Dv].
        mask: a Mask, a function (b, h, q, k) -> bool, or a tensor that broadcasts to
            [B,H,Q,K] (bool: True may attend; float: added, and -inf hides the key).
        score: Dot(), Cosine() or Additive(...). Dot() if not given.
        scale: a rule, a number, or a tensor [H] or broadcastable to [B,H,Q]; the score's own
            default if not given.
        weights: Softmax() if not given; see attentropy.core.weights.
        bias: a tensor that broadcasts to [B,H,Q,K], Relative(table) or ALiBi().
        softcap: c in c * tanh(s / c), applied before the bias.
        sink: [H], the logit of one more outcome, which has no value.
        dropout: the share of weights dropped, after the statistics are taken.
        stats: "all", "none", "entropy", or a set of names such as {"entropy", "argmax"}. Reading a
            statistic that was not asked for raises.
        kernel: "auto" takes the fastest that serves the call; a kernel asked for by name is
            never replaced by another.

    Returns:
        Attended(out [B,H,Q,Dv], stats), with gradients through out and statistics.
    """
    options = Options(mask, score, scale, weights, bias, softcap, sink, dropout, stats)
    kind = None if installed() else kind_of(q, k, v, options, kernel)
    plan = find(kind)
    if plan is not None and plan.serves(q, k, v):
        return plan.attend(q, k, v)

    def make(q: Tensor, k: Tensor, options: Options) -> Call:
        call = resolve(q, k, v, options)
        if kernel != "auto" and installed():
            choose(call, kernel)
        return call

    call = changed(q, k, options, make)
    found = recorded(call, lambda call: attended(call, run(call, kernel)))
    note(kind, call, kernel)
    return found


def run(call: Call, kernel: str) -> Rows:
    """Run the chosen kernel on a resolved call, leaving out its sink.

    Args:
        call: a resolved call.
        kernel: as in attend().
    """
    call, chosen = choose(call, kernel)
    if is_empty(call) or call.q.is_meta:
        return _blind(call)
    if call.q.shape[3] and call.v.shape[3]:
        return chosen.attend(call)
    rows = chosen.attend(widened(call))
    return rows._replace(out=rows.out[..., : call.v.shape[3]])


def is_empty(call: Call) -> bool:
    """Whether there is no row, or no key.

    Args:
        call: a resolved call.
    """
    batch, heads, queries, _ = call.q.shape
    return not batch * heads * queries * call.k.shape[2]


def widened(call: Call) -> Call:
    """The call with one column of zeros where tensors have no width; no score changes.

    Args:
        call: a resolved call.
    """
    narrow = [name for name in ("q", "k", "v") if not getattr(call, name).shape[3]]
    columns: dict[str, Tensor | None] = {n: F.pad(getattr(call, n), (0, 1)) for n in narrow}
    return replace_tensors(call, columns)


def _blind(call: Call) -> Rows:
    """Rows without keys: zeros that are connected to the inputs, so that gradients are zero."""
    batch, heads, queries, _ = call.q.shape
    rows = (batch, heads, queries)
    wide = torch.float64 if call.q.dtype == torch.float64 else torch.float32
    nothing = sum(x[..., :0].sum() for x in (call.q, call.k, call.v))
    zero = torch.zeros(rows, dtype=wide, device=call.q.device) + nothing
    out = call.v.new_zeros(*rows, call.v.shape[-1]) + nothing
    none = torch.full(rows, -1, dtype=torch.int64, device=call.q.device)
    floor = torch.full_like(zero, -torch.inf)
    if call.weights.probabilities:
        lse = None if isinstance(call.weights, RowWeights) else zero - torch.inf
        return Rows(out, zero, lse, floor, none, zero, varentropy=zero)
    return Rows(out, None, None, floor, none, zero, zero)
