"""Calls that every kernel must agree on, and how to compare what they give."""

from dataclasses import dataclass

import torch

import attentropy as at

HEADS, WIDTH = 4, 16


@dataclass(frozen=True)
class Shape:
    batch: int = 2
    heads: int = HEADS
    key_heads: int = 2
    queries: int = 33
    keys: int = 47
    width: int = WIDTH
    value_width: int = 8

    def tensors(self, dtype=torch.float64, size=1.0):
        generator = torch.Generator().manual_seed(hash(self) % 2**31)

        def draw(heads, rows, width):
            x = torch.randn(
                self.batch, heads, rows, width, generator=generator, dtype=torch.float64
            )
            return (x * size).to(dtype).requires_grad_()

        return (
            draw(self.heads, self.queries, self.width),
            draw(self.key_heads, self.keys, self.width),
            draw(self.key_heads, self.keys, self.value_width),
        )


SHAPES = [
    Shape(),
    Shape(batch=1, heads=1, key_heads=1, queries=1, keys=1, width=1, value_width=1),
    Shape(batch=1, queries=2, keys=257, width=8),
    Shape(batch=1, heads=2, queries=111, keys=63, width=5, value_width=3),
    Shape(batch=3, key_heads=1, queries=63, keys=111),
    Shape(queries=17, keys=0),
    Shape(queries=0, keys=5),
    Shape(batch=0),
]


def _random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def masks(shape):
    lengths = torch.arange(shape.batch) % (shape.keys + 1)
    ids = torch.arange(shape.keys) // 7
    found = {
        "full": None,
        "causal": at.causal,
        "window": at.causal & at.lookback(5),
        "band": at.lookback(3) & at.lookahead(4),
        "prefix": at.causal | at.prefix(3),
        "padding": at.padding(lengths),
        "strided": at.causal & at.strided(3),
        "not": ~(at.causal & at.strided(2)),
        "function": lambda b, h, q, k: (q + 2 * k + h + b) % 3 > 0,
        "bool": _random(shape.batch, 1, shape.queries, shape.keys) > 0,
        "float": _random(shape.queries, shape.keys).masked_fill(
            _random(shape.queries, shape.keys) > 0.5, -torch.inf
        ),
    }
    if shape.queries <= shape.keys:
        found["documents"] = at.causal & at.documents(ids)
    return found


def options(shape):
    """Named options of attend(), each of them touching one part of the computation."""
    hidden = 6
    return {
        "plain": {},
        "log length": {"scale": at.LogLength(kappa=2.0), "mask": at.causal},
        "mixed": {"scale": at.Mixed(beta=0.7), "mask": at.causal},
        "hold entropy": {"scale": at.HoldEntropy(8, 1.5), "mask": at.causal},
        "info scale": {"scale": at.InfoScale(8), "mask": at.causal},
        "cos scale": {
            "score": at.Cosine(),
            "scale": at.CosScale(5.0, growth=at.InfoScale(8)),
            "mask": at.causal,
        },
        "scale tensor": {"scale": _random(shape.heads).abs()},
        "negative scale": {"scale": -0.3},
        "cosine": {"score": at.Cosine(), "mask": at.causal},
        "additive": {
            "score": at.Additive(
                _random(hidden, shape.width), _random(hidden, shape.width) / 2, _random(hidden)
            ),
            "mask": at.causal,
        },
        "bias": {"bias": _random(1, shape.heads, 1, shape.keys), "mask": at.causal},
        "relative": {"bias": at.Relative(_random(shape.heads, 9))},
        "alibi": {"bias": at.ALiBi(), "mask": at.causal},
        "softcap": {"softcap": 0.7, "bias": _random(shape.queries, shape.keys)},
        "sink": {"sink": _random(shape.heads), "mask": at.causal & at.lookback(4)},
        "dropout": {"dropout": 0.4, "mask": at.causal},
        "gumbel": {"weights": at.Gumbel(0.7), "mask": at.causal},
        "hard gumbel": {"weights": at.Gumbel(0.7, hard=True)},
        "hard": {"weights": at.Hard(), "mask": at.causal},
        "straight through": {"weights": at.Hard(straight_through=True)},
        "relu squared": {"weights": at.ReluSquared(), "mask": at.causal},
        "linear": {"weights": at.Linear(), "mask": at.strided(2)},
        "l1": {"weights": at.L1(), "mask": at.causal},
        "l2": {"weights": at.L2(at.ReluSquared()), "mask": at.causal, "dropout": 0.2},
        "kernelised": {"weights": at.Kernelised("elu"), "mask": at.causal},
        "decay": {"weights": at.Decay(0.8)},
        "sigmoid": {"weights": at.Sigmoid(bias=-2.0), "mask": at.causal},
        "entmax": {"weights": at.Entmax(1.5), "mask": at.causal, "scale": at.PowerLog(0.5, 1.5)},
        "sparsemax": {"weights": at.Sparsemax(), "scale": at.StepLog(8), "dropout": 0.3},
        "softpick": {"weights": at.Softpick(), "mask": at.causal & at.lookback(9)},
    }


FIELDS = (
    "entropy", "lse", "max_logit", "argmax", "collision", "varentropy", "visible", "sink_mass", "mass",
)  # fmt: skip
FLOWING = ("entropy", "collision", "lse", "sink_mass", "mass", "varentropy")


def run(kernel, tensors, given, *, without=()):
    """Output, statistics and gradients of a loss that uses every differentiable result."""
    torch.manual_seed(5)
    extra = [x for x in given.values() if isinstance(x, torch.Tensor) and x.is_floating_point()]
    for x in extra:
        x.requires_grad_()
    out, stats = at.attend(*tensors, kernel=kernel, **given)
    loss = (out.double() * out.double().sin().detach()).sum()
    for i, name in enumerate(FLOWING):
        value = getattr(stats, name)
        if value is not None and name not in without:
            seen = value.double().where(stats.visible > 0, 0.0)
            loss = (
                loss
                + (seen * torch.linspace(-1, 1 + i, max(1, seen.shape[-1]))[: seen.shape[-1]]).sum()
            )
    inputs = [x for x in (*tensors, *extra) if x.requires_grad]
    grads = torch.autograd.grad(loss, inputs, allow_unused=True)
    return out, stats, [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, grads)]


def assert_same(got, want, *, atol, rtol, without=()):
    """Same output, statistics and gradients."""
    torch.testing.assert_close(got[0], want[0], atol=atol, rtol=rtol)
    for name in FIELDS:
        if name in without:
            continue
        a, b = getattr(got[1], name), getattr(want[1], name)
        if a is None or b is None:
            assert name in ("max_logit", "argmax") or (a is None and b is None), name
            continue
        torch.testing.assert_close(a, b, atol=atol, rtol=rtol, msg=lambda m, n=name: f"{n}: {m}")
    for a, b in zip(got[2], want[2], strict=True):
        torch.testing.assert_close(a, b, atol=10 * atol, rtol=10 * rtol)
