"""Cutting calls into tiles: every pair once, hidden tiles skipped, nothing changed by it."""

import pytest
import torch

import attentropy as at
from attentropy.core.resolve import Options, resolve
from attentropy.kernels.tiled import tiles
from attentropy.kernels.tiled.tiles import RowBlock, Tiler, first_seen, seen_product
from tests.cases import Shape, assert_same, options, run

pytestmark = pytest.mark.usefixtures("poisoned")


@pytest.mark.parametrize("name", ["plain", "softcap", "alibi", "dropout", "l2", "gumbel"])
def test_many_small_tiles_change_nothing(name, monkeypatch):
    shape = Shape(queries=40, keys=150)
    given, tensors = options(shape)[name], shape.tensors()
    want = run("reference", tensors, given)
    monkeypatch.setattr(tiles, "TILE_ELEMENTS", 64)
    monkeypatch.setattr(tiles, "MAX_KEYS", 16)
    monkeypatch.setattr(tiles, "MIN_ROWS", 3)
    assert_same(run("streaming", tensors, given), want, atol=1e-11, rtol=1e-10)


def test_strided_inputs():
    q, k, v = (x.detach() for x in Shape(queries=47).tensors())
    apart = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert not apart[0].is_contiguous()
    want = at.attend(q, k, v, mask=at.causal, kernel="streaming")
    assert torch.equal(at.attend(*apart, mask=at.causal, kernel="streaming").out, want.out)


def test_long_rows_span_several_tiles():
    q, k = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 2 * tiles.MAX_KEYS + 5, 4)
    got = at.attend(q, k, k, kernel="streaming")
    want = at.attend(q.double(), k.double(), k.double(), kernel="reference")
    torch.testing.assert_close(got.stats.entropy, want.stats.entropy.float(), atol=2e-6, rtol=0)
    assert torch.equal(got.stats.argmax, want.stats.argmax)


@pytest.mark.parametrize("library", [tiles._ONEDNN, None])
def test_large_products_by_either_library(library, monkeypatch):
    monkeypatch.setattr(tiles, "_ONEDNN", library)
    q, k, v = (torch.randn(1, 1, n, d) for n, d in ((700, 40), (1100, 40), (1100, 24)))
    got = at.attend(q, k, v, kernel="streaming")
    want = at.attend(q.double(), k.double(), v.double(), kernel="reference")
    torch.testing.assert_close(got.out.double(), want.out, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(got.stats.entropy.double(), want.stats.entropy, atol=2e-6, rtol=0)


@pytest.mark.parametrize("weights", [None, at.Linear()])
@pytest.mark.parametrize("mask", [None, at.lookback(2), lambda b, h, q, k: (q + k) % 3 == 0])
def test_rows_of_minus_infinity_name_their_first_visible_key(mask, weights):
    q, k = torch.ones(1, 1, 3, 2), torch.full((1, 1, 6, 2), -torch.inf)
    given = {"mask": mask, "weights": weights}
    want = at.attend(q, k, q[:, :, :1].expand_as(k), kernel="reference", **given).stats
    got = at.attend(q, k, q[:, :, :1].expand_as(k), kernel="streaming", **given).stats
    assert torch.equal(got.argmax, want.argmax)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(tiles, "TILE_ELEMENTS", 64)
    monkeypatch.setattr(tiles, "MAX_KEYS", 16)
    monkeypatch.setattr(tiles, "MIN_ROWS", 3)


def tiler(shape, **given):
    return Tiler(resolve(*(x.detach() for x in shape.tensors()), Options(**given)))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("mask", [None, at.causal, at.causal & at.lookback(5)], ids=str)
def test_every_visible_pair_is_in_one_tile(mask):
    shape = Shape(queries=23, keys=37)
    made = tiler(shape, mask=mask)
    count = torch.zeros(2, 4, 23, 37, dtype=torch.int64)
    for block in made.blocks():
        for keys in made.key_ranges(block):
            assert keys.stop - keys.start <= 16
            count[block.batch, made.heads_of(block), block.queries, keys] += 1
    seen = made.call.seen.dense()
    assert (count[seen] == 1).all()
    assert count.max() == 1
    if mask is not None:
        assert (count == 0).any()


@pytest.mark.usefixtures("small")
def test_tiles_see_what_the_call_sees():
    made = tiler(Shape(queries=23, keys=37), mask=~(at.causal & at.strided(2)))
    whole = made.call.seen.dense()
    for block in made.blocks():
        for keys in made.key_ranges(block):
            got = made.four(block, made.seen(block, keys))
            assert torch.equal(got, made.span(block, keys).of(whole))


def test_rows_go_to_the_working_layout_and_back():
    made = tiler(Shape(queries=6, keys=5))
    block = RowBlock(slice(1, 2), slice(0, 2), slice(2, 5))
    assert block.count == (1, 2, 3)
    x = torch.randn(2, 4, 6, dtype=torch.float64)
    rows = made.rows(block, x)
    assert rows.shape == (2, 6, 1)
    target = torch.zeros_like(x)
    made.put(block, target, rows[..., 0])
    assert torch.equal(target[1, :, 2:5], x[1, :, 2:5])
    assert not target[0].any()


@pytest.mark.parametrize("mask", [None, at.lookback(2) & at.causal, ~at.full], ids=str)
def test_the_first_key_that_a_row_sees(mask):
    made = tiler(Shape(queries=9, keys=12), mask=mask)
    dense = made.call.seen.dense()
    want = torch.where(dense.any(-1), dense.int().argmax(-1), -1)
    assert torch.equal(first_seen(made), want)


def test_a_nan_meets_the_rows_that_see_it_only():
    a, b = torch.rand(1, 3, 4), torch.randn(1, 4, 2)
    b[0, 2] = torch.tensor([torch.nan, torch.inf])
    seen = torch.ones(1, 3, 4, dtype=torch.bool)
    seen[0, 1, 2] = False
    out = seen_product(a.where(seen, 0.0), b, seen)
    assert out[0, 1].isfinite().all()
    assert out[0, 0, 0].isnan()
    assert out[0, 0, 1] == torch.inf


def test_scratch_memory_is_the_same_for_every_tile():
    made = tiler(Shape())
    assert made.buffer("x", (2, 3)).data_ptr() == made.buffer("x", (2, 3)).data_ptr()
    assert made.buffer("x", (2, 3)).shape == (2, 3)
