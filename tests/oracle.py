"""Random calls of attend(), and what they should give: dense, float64, written from the formulas.

Nothing of the library computes here: masks, biases, weights and statistics are made of indices and
plain torch. `expected(call)` is the truth; `expected(call, naive=True)` is the same computation done
in the precision of the inputs, whose error is the budget of a kernel.
"""

import math
import random
from dataclasses import dataclass, field

import torch

import attentropy as at

NAMES = ("entropy", "lse", "collision", "max_logit", "mass", "sink_mass", "varentropy")


@dataclass
class Drawn:
    """One call: tensors, options of attend(), and what they mean in dense form."""

    seed: int
    tensors: list
    options: dict
    seen: torch.Tensor  # bool [B,H,Q,K]
    terms: dict = field(default_factory=dict)  # scale, softcap, bias, sink, weights, score

    def __str__(self):
        shapes = [list(x.shape) for x in self.tensors]
        return f"seed {self.seed}: {shapes} {self.tensors[0].dtype} {self.options}"


def draw(seed, dtype=torch.float32):
    """A call that depends on the seed only."""
    r, g = random.Random(seed), torch.Generator().manual_seed(seed)

    def normal(*size):
        return torch.randn(*size, generator=g, dtype=torch.float64)

    batch, key_heads, group = r.choice([1, 1, 2]), r.choice([1, 2]), r.choice([1, 1, 3])
    queries = r.choice([1, 2, 4, 5, 17, 33, r.randint(1, 80)])
    keys = r.choice([1, 3, 16, 33, 65, r.randint(1, 90), queries])
    # of width 1, cosines and L2 do not depend on the size of q: gradients are rounding only
    width, out = r.choice([2, 4, 8, 16, 31, 64]), r.choice([1, 8, 16, 33])
    heads, size = key_heads * group, r.choice([0.1, 1.0, 1.0, 4.0])
    shapes = ((heads, queries, width), (key_heads, keys, width), (key_heads, keys, out))
    tensors = [_laid_out(r, (normal(batch, *s) * size).to(dtype)) for s in shapes]
    i = torch.arange(queries)[:, None] + keys - queries
    j = torch.arange(keys)[None]
    call = Drawn(seed, tensors, {}, torch.ones(batch, heads, queries, keys, dtype=torch.bool))
    _draw_weights(r, call)
    _draw_mask(r, g, call, i, j)
    logits = call.terms["weights"] not in ("kernelised", "decay")
    if logits:
        _draw_scale(r, normal, call)
        _draw_bias(r, normal, call, i, j)
    if call.terms["weights"] == "decay":
        call.seen = call.seen & (j <= i)
    call.terms["distance"] = (i - j).expand(queries, keys)
    return call


def _laid_out(r, x):
    match r.choice(["plain", "plain", "tokens", "overlapping", "part"]):
        case "tokens":
            return x.transpose(1, 2).contiguous().transpose(1, 2)
        case "overlapping":
            return torch.cat([x[..., 0], x[..., -1, 1:]], -1).unfold(-1, x.shape[-1], 1)
        case "part":
            return torch.cat([x * torch.nan, x], -1)[..., x.shape[-1] :]
    return x


def _draw_weights(r, call):
    kinds = ["softmax"] * 6 + ["relu", "linear", "l1", "l2", "kernelised", "decay", "hard"]
    kind = r.choice(kinds)
    call.terms["weights"] = kind
    made = {
        "relu": at.ReluSquared(), "linear": at.Linear(), "l1": at.L1(), "l2": at.L2(),
        "kernelised": at.Kernelised("elu"), "decay": at.Decay(0.8), "hard": at.Hard(),
    }  # fmt: skip
    if kind != "softmax":
        call.options["weights"] = made[kind]


def _draw_mask(r, g, call, i, j):
    batch, _, queries, keys = call.seen.shape
    match r.choice(["full", "causal", "window", "bool", "padding", "strided", "none"]):
        case "causal":
            mask, seen = at.causal, j <= i
        case "window":
            mask, seen = at.causal & at.lookback(5), (j <= i) & (i - j < 5)
        case "bool":
            seen = torch.rand(batch, 1, queries, keys, generator=g) > 0.4
            mask = seen
        case "padding":
            lengths = torch.randint(0, keys + 1, (batch,), generator=g)
            mask, seen = at.padding(lengths), j < lengths.view(-1, 1, 1, 1)
        case "strided":
            # every third key back from the query's own position
            mask, seen = at.strided(3), (i - j) % 3 == 0
        case _:
            return
    call.options["mask"], call.seen = mask, call.seen & seen


def _draw_scale(r, normal, call):
    batch, heads, queries, _ = call.seen.shape
    width = call.tensors[0].shape[3]
    scale, score = width**-0.5, r.choice(["dot", "dot", "dot", "cosine"])
    if score == "cosine":
        call.options["score"], scale = at.Cosine(), 10.0
    match r.choice(["none", "none", "number", "heads", "rows"]):
        case "number":
            scale = call.options["scale"] = r.choice([0.5, -0.3, 3.0])
        case "heads":
            call.options["scale"] = normal(heads).float().to(call.tensors[0].dtype)
            scale = call.options["scale"].double().view(1, -1, 1, 1)
        case "rows":
            call.options["scale"] = normal(batch, heads, queries).float()
            scale = call.options["scale"].double()[..., None]
    call.terms |= {"scale": scale, "score": score}


def _draw_bias(r, normal, call, i, j):
    _, heads, queries, keys = call.seen.shape
    dtype = call.tensors[0].dtype
    if r.random() < 0.2:
        call.options["softcap"] = call.terms["softcap"] = 2.0
    if r.random() < 0.2 and call.terms["weights"] == "softmax":
        call.options["sink"] = normal(heads).to(dtype)
    match r.choice(["none", "none", "table", "hiding", "relative", "alibi"]):
        case "table":
            call.options["bias"] = normal(1, heads, queries, keys).to(dtype)
        case "hiding":
            bias = normal(queries, keys).masked_fill(normal(queries, keys) > 0.8, -math.inf)
            call.options["bias"] = bias.to(dtype)
            call.seen = call.seen & ~bias.isneginf()
        case "relative":
            table = normal(heads, 7).to(dtype)
            call.options["bias"] = at.Relative(table)
            call.terms["bias"] = table.double()[:, (j - i).clamp(-3, 3) + 3]
        case "alibi":
            slopes = normal(heads).abs().to(dtype)
            call.options["bias"] = at.ALiBi(slopes)
            call.terms["bias"] = -slopes.double().view(-1, 1, 1) * (i - j).abs()
    if isinstance(call.options.get("bias"), torch.Tensor):
        call.terms["bias"] = call.options["bias"].double().masked_fill(~call.seen, 0.0)


def expected(call, *, naive=False):
    """Output, statistics by name and gradients of the tensors, or the same done naively."""
    low = call.tensors[0].dtype
    dtype = low if naive else torch.float64
    leaves = [x.detach().to(dtype).requires_grad_() for x in call.tensors]
    group = leaves[0].shape[1] // leaves[1].shape[1]
    q, k, v = leaves[0], *(x.repeat_interleave(group, 1) for x in leaves[1:])
    wide = torch.promote_types(torch.float32, dtype)
    weights, found = _weights(call, q, k, wide)
    return weights.to(dtype) @ v, found, leaves


def _weights(call, q, k, wide):
    kind, hidden = call.terms["weights"], ~call.seen
    blind = hidden.all(-1)
    if kind == "kernelised":
        f = _features(q.to(wide)) @ _features(k.to(wide)).mT
    elif kind == "decay":
        f = (0.8 ** call.terms["distance"].clamp(min=0).to(wide)).expand(hidden.shape)
    else:
        f = s = _logits(call, q, k, wide)
        call.terms["reach"] = s.detach().abs().masked_fill(hidden, 0.0).max().item()
    if kind in ("softmax", "hard"):
        return _probabilities(call, s.masked_fill(hidden, -math.inf), hidden, blind)
    if kind == "relu":
        f = s.relu().square() / call.seen.sum(-1, keepdim=True).clamp(min=1)
    f = f.masked_fill(hidden, 0.0)
    if kind in ("l1", "kernelised", "l2"):
        size = f.square().sum(-1, keepdim=True) if kind == "l2" else f.abs().sum(-1, keepdim=True)
        none = size == 0
        size = size.masked_fill(none, 1.0)
        f = (f / (size.sqrt() if kind == "l2" else size)).masked_fill(none, 0.0)
    mass = None if kind == "kernelised" else f.abs().sum(-1)
    found = {"collision": f.square().sum(-1), "mass": mass}
    if kind in ("relu", "linear", "l1", "l2"):
        found["max_logit"] = s.detach().masked_fill(hidden, -math.inf).amax(-1)
    return f, found


def _features(x):
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def _logits(call, q, k, wide):
    if call.terms["score"] == "cosine":
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-12).sqrt() for x in (q, k))
    scale = call.terms["scale"]
    s = (q @ k.mT).to(wide) * (scale.to(wide) if isinstance(scale, torch.Tensor) else scale)
    if "softcap" in call.terms:
        s = 2.0 * (s / 2.0).tanh()
    return s + call.terms["bias"].to(wide) if "bias" in call.terms else s


def _probabilities(call, s, hidden, blind):
    top = s.detach().amax(-1)
    if call.terms["weights"] == "hard":
        first = (s == top[..., None]).to(torch.uint8).argmax(-1)
        p = torch.nn.functional.one_hot(first, s.shape[-1]).to(s.dtype).masked_fill(hidden, 0.0)
        zero = torch.zeros_like(top)
        found = {"entropy": zero, "varentropy": zero, "collision": p.sum(-1), "lse": top}
        return p, {**found, "max_logit": top}
    sink = call.options.get("sink")
    z = s.masked_fill(blind[..., None], 0.0)
    if sink is not None:
        more = sink.to(z.dtype).view(1, -1, 1, 1).expand(*z.shape[:3], 1)
        z = torch.cat([z.masked_fill(hidden, -math.inf), more], -1)
        hidden = torch.cat([hidden, torch.zeros_like(hidden[..., :1])], -1)
        blind = torch.zeros_like(blind)
    log_p = z.log_softmax(-1).masked_fill(hidden, 0.0)
    p = log_p.exp().masked_fill(hidden, 0.0)
    entropy = -(p * log_p).sum(-1)
    found = {
        "entropy": entropy,
        "lse": z.logsumexp(-1).masked_fill(blind, -math.inf),
        "collision": p.square().sum(-1),
        "max_logit": top,
        "varentropy": (p * (log_p + entropy[..., None]).square()).sum(-1),
    }
    if sink is not None:
        found["sink_mass"] = p[..., -1]
        return p[..., :-1], found
    return p, found


def gradients(out, found, leaves):
    """Gradients of a loss that uses every differentiable result, with fixed coefficients."""
    loss = 0.0
    for number, x in enumerate((out, *(found.get(name) for name in NAMES))):
        if x is None or not x.requires_grad:
            continue
        g = torch.randn(x.shape, generator=torch.Generator().manual_seed(number))
        loss = loss + (torch.where(x.isfinite(), x, 0.0) * g.to(x.dtype)).sum()
    if not isinstance(loss, torch.Tensor):
        return [torch.zeros_like(x) for x in leaves]
    found_grads = torch.autograd.grad(loss, leaves, allow_unused=True)
    pairs = zip(leaves, found_grads, strict=True)
    return [torch.zeros_like(x) if g is None else g for x, g in pairs]
