"""Calls for the tests of the fused kernel, and the two computations they are judged by.

The specification is the float64 reference; the budget of an error is what the same computation
loses when it is done naively in the dtype of the inputs.
"""

import contextlib
import math

import torch
from hypothesis import strategies as st

from attentropy.core.call import Call
from attentropy.core.masks import Extent
from attentropy.core.visibility import Visibility
from attentropy.core.weights import Softmax
from attentropy.kernels import reference
from attentropy.kernels.fused import kernel as fused
from attentropy.kernels.fused import library

INPUTS = ("q", "k", "v", "scale", "bias", "relative")
FLOWING = ("out", "entropy", "lse", "collision", "varentropy")
ISAS = library.runnable()


@contextlib.contextmanager
def serving(isa):
    """The fused kernel built for `isa`, with NaN in all memory that nobody wrote."""
    found = library.find(isa)
    assert isinstance(found, library.Library), found
    before, filled = library.serving, torch.utils.deterministic.fill_uninitialized_memory
    library.serving = found
    found.poison(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True)
    try:
        yield found
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = filled
        found.poison(False)
        library.serving = before


LAYOUTS = {
    "contiguous": lambda x: x,
    "tokens first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "part of wider rows": lambda x: torch.cat([x, x * torch.nan], -1)[..., : x.shape[-1]],
    "odd offset": lambda x: torch.cat([x[..., :1], x], -1)[..., 1:],
    "last stride two": lambda x: torch.stack([x, x * torch.nan], -1)[..., 0],
    "one batch for all": lambda x: x[:1].expand(x.shape),
    "overlapping rows": lambda x: torch.cat([x[..., 0], x[..., -1, 1:]], -1).unfold(
        -1, x.shape[-1], 1
    ),
}


@st.composite
def shapes(draw):
    """B, H, Hk, Q, K, D, Dv; ragged, with the boundaries of vectors and panels among them."""
    edges = st.sampled_from([1, 2, 4, 5, 15, 16, 17, 63, 64, 65, 128, 129])
    hk, group = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    length = st.one_of(edges, st.integers(1, 150))
    keys = st.one_of(edges, st.integers(1, 150), st.sampled_from([191, 193, 255, 257, 300]))
    width = st.one_of(st.integers(1, 40), st.sampled_from([64, 80, 128, 256]))
    return (
        draw(st.integers(1, 2)),
        hk * group,
        hk,
        draw(length),
        draw(keys),
        draw(width),
        draw(width),
    )


EXTRAS = (
    "causal", "window", "intervals", "mask", "query mask", "bias", "hiding bias", "row bias",
    "relative", "one relative", "alibi", "softcap", "row scale", "head scale",
)  # fmt: skip


@st.composite
def calls(draw, dtype=torch.float32):
    """A call of the fused kernel with any mixture of its features."""
    shape = draw(shapes())
    extras = draw(st.sets(st.sampled_from(EXTRAS), max_size=4))
    layouts = [draw(st.sampled_from(sorted(LAYOUTS))) for _ in range(3)]
    return make(shape, extras, layouts=layouts, dtype=dtype, seed=draw(st.integers(0, 10**6)))


def make(shape, extras=(), *, layouts=("contiguous",) * 3, dtype=torch.float32, seed=0):
    b, h, hk, n, m, d, dv = shape
    g = torch.Generator().manual_seed(seed)

    def normal(*size):
        return torch.randn(*size, generator=g)

    q, k, v = (
        LAYOUTS[layout](normal(*size).to(dtype))
        for layout, size in zip(layouts, ((b, h, n, d), (b, hk, m, d), (b, hk, m, dv)), strict=True)
    )
    position = torch.arange(n) + m - n
    fields = {"scale": torch.full((1, 1, 1), d**-0.5)}
    if "causal" in extras:
        fields["hi"] = (position + 1).clamp(0, m).int().view(1, 1, n)
    if "window" in extras:
        fields["lo"] = (position - 20).clamp(0, m).int().view(1, 1, n)
    if "intervals" in extras:
        ends = torch.randint(0, m + 1, (2, b, h, n), generator=g).int()
        fields["lo"], fields["hi"] = ends[0], ends[1]
    if "mask" in extras:
        fields["mask"] = torch.rand(b, 1, n, m, generator=g) > 0.4
    if "query mask" in extras:
        fields["mask"] = torch.rand(b, 1, 1, m, generator=g) > 0.4
    if "bias" in extras:
        fields["bias"] = normal(1, h, n, m)
    if "hiding bias" in extras:
        hidden = torch.rand(b, 1, n, m, generator=g) > 0.7
        fields["bias"] = normal(b, 1, n, m).masked_fill(hidden, -math.inf)
    if "row bias" in extras:
        fields["bias"] = normal(1, 1, n, 1)
    if "relative" in extras:
        fields["relative"] = normal(h, 2 * 7 + 1)
    if "one relative" in extras:
        fields["relative"] = normal(1, 2 * 200 + 1)
    if "alibi" in extras:
        fields["slopes"] = torch.rand(h, generator=g) / 8
    if "softcap" in extras:
        fields["softcap"] = 1.5
    if "row scale" in extras:
        fields["scale"] = torch.rand(b, h, n, generator=g)
    if "head scale" in extras:
        fields["scale"] = torch.rand(1, h, 1, generator=g)
    seen = Visibility(
        Extent(b, h, n, m, q.device),
        fields.pop("lo", None),
        fields.pop("hi", None),
        fields.pop("mask", None),
        added=fields.get("bias"),
    )
    return Call(q=q, k=k, v=v, weights=Softmax(), seen=seen.with_visible(), **fields)


def within(call, lo, hi):
    """The same call with other bounds."""
    return call._replace(seen=call.seen._replace(lo=lo, hi=hi, counted=None).with_visible())


def naive(call):
    """Dense attention in the dtype of the inputs, as anyone would write it."""
    group = call.q.shape[1] // call.k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (call.k, call.v))
    s = (call.q @ k.mT).float() * call.scale[..., None]
    if call.softcap is not None:
        s = call.softcap * (s / call.softcap).tanh()
    distance = (
        torch.arange(k.shape[2]) - (torch.arange(s.shape[2]) + k.shape[2] - s.shape[2])[:, None]
    )
    if call.bias is not None:
        s = s + call.bias
    if call.relative is not None:
        reach = call.relative.shape[1] // 2
        s = s + call.relative[:, distance.clamp(-reach, reach) + reach]
    if call.slopes is not None:
        s = s - call.slopes.view(-1, 1, 1) * distance.abs()
    hidden = ~call.seen.dense()
    blind = hidden.all(-1, keepdim=True)
    s = s.masked_fill(hidden, -math.inf).masked_fill(blind, 0.0)
    p = s.softmax(-1).masked_fill(hidden, 0.0)
    lse = s.logsumexp(-1)
    log_p = (s - lse[..., None]).masked_fill(p == 0, 0.0)
    entropy = -(p * log_p).sum(-1)
    spread = (p * (log_p + entropy[..., None]).square()).sum(-1)
    out = p.to(v.dtype) @ v
    return out, entropy, lse.masked_fill(blind[..., 0], -math.inf), p.square().sum(-1), spread


def run(call, compute, *, dtype=None, flowing=None):
    """Results of `compute` and the gradients of the inputs, from fixed gradients of the results."""
    fields = {}
    for name in INPUTS:
        x = getattr(call, name)
        if x is not None:
            x = x.detach().to(x.dtype if dtype is None else dtype)
            fields[name] = x.requires_grad_()
    rows = compute(call._replace(**fields))
    results = dict(zip(FLOWING, rows, strict=True))
    flowing = FLOWING if flowing is None else flowing
    loss = 0.0
    for i, name in enumerate(flowing):
        x = results[name]
        g = torch.randn(x.shape, generator=torch.Generator().manual_seed(i))
        loss = loss + (torch.where(x.isneginf(), 0.0, x) * g.to(x.dtype)).sum()
    loss.backward()
    grads = {f"d{name}": x.grad for name, x in fields.items()}
    return {**{n: x.detach() for n, x in results.items()}, **grads}


def by_fused(call):
    rows = fused.attend(call)
    return rows.out, rows.entropy, rows.lse, rows.collision, rows.varentropy


def by_reference(call):
    rows = reference.attend(call)
    return rows.out, rows.entropy, rows.lse, rows.collision, rows.varentropy


def error(x, y):
    """Largest difference; infinite where one is finite and the other not."""
    same = (x == y) | (x.isnan() & y.isnan())
    gap = torch.where(same, 0.0, (x.double() - y.double()).abs())
    return gap.nan_to_num(nan=math.inf).max().item() if gap.numel() else 0.0


def uncertainty(call, name):
    """The size of what a gradient is the difference of: ds is p (dP - dO.O + ...), a cancellation.

    The naive computation is exact where one key is visible, which says nothing about rounding.
    """
    longest = {n: getattr(call, n).float().norm(dim=-1).max().item() for n in ("q", "k", "v")}
    ds = longest["v"] * call.v.shape[-1] ** 0.5 + 8.0
    scale = call.scale.abs().max().item()
    logit = reference.logits(call, ~call.seen.dense()).abs().nan_to_num(posinf=0.0).max().item()
    rows = (call.q.shape[0] * call.q.shape[1] * call.q.shape[2]) ** 0.5
    return {
        "dq": ds * scale * longest["k"],
        "dv": rows * 4 + logit,  # p is as uncertain as the rounding of the largest logit
        "dk": ds * scale * longest["q"] * rows,
        "dscale": ds * longest["q"] * longest["k"] * rows,
        "dbias": ds * rows,
        "drelative": ds * rows,
    }.get(name, 1.0 + logit)
