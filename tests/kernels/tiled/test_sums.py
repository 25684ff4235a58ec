"""Weights that are no probabilities, against sums written out."""

import pytest
import torch

import attentropy as at
from attentropy.core.resolve import Options, resolve
from attentropy.kernels.tiled import sums, tiles
from attentropy.kernels.tiled.sums import SumResults, divided, empty, forward, row_size
from tests.cases import Shape

SHAPE = Shape(queries=9, keys=13)
WEIGHTS = [at.Linear(), at.ReluSquared(), at.L1(), at.L2(), at.L2(at.ReluSquared())]


def made(weights, **given):
    return resolve(*(x.detach() for x in SHAPE.tensors()), Options(weights=weights, **given))


def written_out(call):
    """f(s) of every visible pair, in float64."""
    k = call.k.repeat_interleave(2, 1)
    s = call.q @ k.mT * call.scale[..., None]
    inner = getattr(call.weights, "of", call.weights)
    f = s.relu().square() if isinstance(inner, at.ReluSquared) else s
    return f.masked_fill(~call.seen.dense(), 0.0), s


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@pytest.mark.parametrize("tile", [4, 1 << 13])
def test_sums_over_tiles(weights, tile, monkeypatch):
    monkeypatch.setattr(tiles, "MAX_KEYS", tile)
    call = made(weights, mask=at.causal & at.lookback(7))
    f, s = written_out(call)
    got = forward(call)
    torch.testing.assert_close(got.o, f @ call.v.repeat_interleave(2, 1))
    torch.testing.assert_close(got.n1, f.abs().sum(-1))
    torch.testing.assert_close(got.n2, f.square().sum(-1).sqrt())
    top = s.masked_fill(~call.seen.dense(), -torch.inf).max(-1)
    torch.testing.assert_close(got.max_logit, top.values)
    assert torch.equal(got.argmax, top.indices)


@pytest.mark.parametrize(
    ("weights", "want"),
    [
        (at.Linear(), [1.0, 1.0, 1.0]),
        (at.L1(), [0.5, 0.0, 0.25]),
        (at.L2(), [1.0, 0.0, 0.5]),
        (at.ReluSquared(), [1 / 3, 1 / 3, 0.0]),
    ],
    ids=str,
)
def test_what_rows_are_multiplied_by(weights, want):
    q, k = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 4)
    mask = torch.tensor([[True] * 3, [True] * 3, [False] * 3])
    call = resolve(q, k, k, Options(weights=weights, mask=mask))
    n1, n2 = torch.tensor([[[2.0, 0.0, 4.0]]]), torch.tensor([[[1.0, 0.0, 2.0]]])
    got = divided(torch.ones(3), row_size(call, n1, n2))
    torch.testing.assert_close(got, torch.tensor([[want]]))


def test_blind_rows_have_no_strongest_key():
    call = made(at.Linear(), mask=~at.full)
    got = forward(call)
    assert (got.argmax == -1).all()
    assert got.max_logit.isneginf().all()
    assert not got.o.any()


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_empty_results_look_like_real_ones(weights):
    call = made(weights)
    for name, got, want in zip(SumResults._fields, empty(call), forward(call), strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype), name


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_gradcheck(weights):
    shape = Shape(batch=1, heads=2, key_heads=1, queries=3, keys=4, width=3, value_width=2)

    def outputs(q, k, v, bias):
        rows = sums.attend(resolve(q, k, v, Options(weights=weights, bias=bias, mask=at.causal)))
        return rows.out, rows.mass, rows.collision

    bias = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(outputs, (*shape.tensors(), bias))
