"""Logits of chosen rows, keys and pairs are those of the reference kernel."""

import pytest
import torch

import attentropy as at
from attentropy.core.masks import Extent
from attentropy.core.resolve import Options, resolve
from attentropy.core.visibility import Span, Visibility
from attentropy.kernels import reference
from attentropy.kernels.tiled.logits import pair_logits, row_logits

GEN = torch.Generator().manual_seed(0)
Q, K = torch.randn(2, 4, 6, 8, generator=GEN), torch.randn(2, 2, 9, 8, generator=GEN)
BIAS = torch.randn(1, 4, 6, 9, generator=GEN).masked_fill(torch.rand(6, 9, generator=GEN) > 0.8, -torch.inf)  # fmt: skip
ADDITIVE = [torch.randn(shape, generator=GEN) for shape in ((5, 8), (5, 8), (5,))]
CASES = {
    "plain": {},
    "causal": {"mask": at.causal},
    "window": {"mask": at.causal & at.lookback(3), "scale": at.LogLength()},
    "predicate": {"mask": at.strided(2)},
    "table": {"mask": torch.rand(2, 1, 6, 9, generator=GEN) > 0.3},
    "bias": {"bias": BIAS, "mask": at.causal},
    "softcap": {"softcap": 0.7, "mask": at.causal},
    "relative": {"bias": at.Relative(torch.randn(4, 5, generator=GEN))},
    "alibi": {"bias": at.ALiBi(), "mask": at.causal},
    "additive": {"score": at.Additive(*ADDITIVE), "mask": at.causal},
    "dropout": {"dropout": 0.5, "mask": at.causal},
}


def call(name, dtype=torch.float64):
    options = Options(**CASES[name])
    if name in ("additive", "relative"):
        dtype = torch.float32
    return resolve(Q.to(dtype), K.to(dtype), K.to(dtype), options)


def dense(given):
    """All logits by the reference kernel, [B,H,Q,K]."""
    hidden = ~given.seen.dense()
    return reference.logits(given, hidden).masked_fill(hidden, -torch.inf)


def close(got, want):
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_rows_and_keys(name):
    given = call(name)
    want = dense(given)
    index = torch.tensor([5, 0, 3])
    close(row_logits(given, index), want[:, :, index])
    close(row_logits(given, slice(2, 5)), want[:, :, 2:5])
    close(row_logits(given, slice(0, 6), keys=slice(3, 7)), want[:, :, :, 3:7])
    close(row_logits(given, index, keys=slice(0, 1)), want[:, :, index, :1])


@pytest.mark.parametrize("name", CASES)
def test_what_rows_see_may_be_given(name):
    given, index = call(name), torch.tensor([4, 1])
    seen = given.seen.select(Span(queries=index))
    close(row_logits(given, index, seen=seen), dense(given)[:, :, index])
    every = Visibility(Extent(2, 4, 2, 9, Q.device), origin=seen.origin)
    shown = row_logits(given._replace(bias=None), index, seen=every)
    assert not bool(shown.isneginf().any())


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "key",
    [
        torch.zeros(1, 1, 1, dtype=torch.int64),
        torch.tensor([3, 0]).view(2, 1, 1),
        torch.tensor([-1, 0, 4, 8, 9, 2]).view(1, 1, 6),
        torch.randint(0, 9, (2, 1, 6), generator=GEN),
        torch.randint(-1, 10, (2, 4, 6), generator=GEN),
        torch.randint(0, 9, (1, 4, 1), generator=GEN),
    ],
    ids=lambda key: str(list(key.shape)),
)
def test_one_key_for_each_query(name, key):
    given = call(name)
    key = key.expand(2, 4, 6)
    outside = (key < 0) | (key > 8)
    want = dense(given).gather(-1, key.clamp(0, 8)[..., None])[..., 0]
    close(pair_logits(given, key), want.masked_fill(outside, -torch.inf))


def test_keys_keep_the_shape_they_are_given_in():
    given = call("causal")
    for shape in ((1, 1, 1), (2, 1, 1), (1, 1, 6), (2, 1, 6), (1, 4, 1)):
        key = torch.randint(0, 9, shape, generator=GEN)
        want = dense(given).gather(-1, key.expand(2, 4, 6)[..., None])[..., 0]
        close(pair_logits(given, key), want)


@pytest.mark.parametrize("name", [n for n in CASES if n != "additive"])
def test_a_compiled_graph_gives_the_same(name):
    torch._dynamo.reset()
    given, key = call(name), torch.tensor([-1, 0, 4, 8, 9, 2]).view(1, 1, 6)
    index = torch.tensor([1, 4])

    def read(q, k):
        asked = given._replace(q=q, k=k)
        return row_logits(asked, index), pair_logits(asked, key)

    compiled = torch.compile(read, backend="eager", fullgraph=True)
    for got, want in zip(compiled(given.q, given.k), read(given.q, given.k), strict=True):
        torch.testing.assert_close(got, want)
    torch._dynamo.reset()


def test_low_precision_is_widened_and_has_no_gradient():
    q = Q.to(torch.bfloat16).requires_grad_()
    k = K.to(torch.bfloat16)
    given = resolve(q, k, k, Options(mask=at.causal))
    s = row_logits(given, slice(0, 6))
    assert s.dtype == torch.float32
    assert not s.requires_grad
    close(s, dense(given).detach())
