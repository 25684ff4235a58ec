"""Rows in terms of p, and where their largest logits are."""

import pytest
import torch

from attentropy.core.states import from_tile
from attentropy.kernels.tiled import means
from attentropy.kernels.tiled.means import Means, rest, without_blind


@pytest.mark.parametrize("size", [255, 511, 512, 513, 600, 640, 1023, 2000])
@pytest.mark.parametrize("levels", [2, 1000])
def test_the_maximum_and_its_lowest_index(size, levels):
    s = torch.randint(-levels, levels, (2, 7, size)).float()
    s[0, 0, -1], s[0, 1, 3], s[1, 0] = torch.nan, torch.nan, -torch.inf
    m, found = means.largest(s)
    want = s.amax(-1, keepdim=True)
    first = torch.where((s == want) | s.isnan() & want.isnan(), torch.arange(size), size).amin(-1)
    assert torch.equal(found, first)
    assert torch.equal(m.nan_to_num(7.0), want[..., 0].nan_to_num(7.0))


def rows():
    s, v = torch.randn(2, 5, 9, dtype=torch.float64), torch.randn(2, 9, 3, dtype=torch.float64)
    s[0, 1] = -torch.inf
    return s, v


def test_means_of_a_state_and_back():
    state = from_tile(*rows())
    found = Means.of(state)
    again = found.state()
    for name in ("m", "l", "t", "u", "c", "o", "argmax", "rest", "spread"):
        torch.testing.assert_close(getattr(again, name), getattr(state, name), msg=name)
    assert not again.visible.any()


def test_means_are_those_of_softmax():
    s, v = rows()
    found = Means.of(from_tile(s, v))
    p = s.softmax(-1)
    seen = torch.ones(2, 5, dtype=torch.bool)
    seen[0, 1] = False
    torch.testing.assert_close(found.rest[seen], 1 / p.amax(-1)[seen] - 1)
    torch.testing.assert_close(found.norm[seen], p.norm(dim=-1)[seen])
    torch.testing.assert_close(found.o[seen], (p @ v)[seen])
    assert found.rest[0, 1] == -1


def test_blind_rows_are_the_identity():
    nan = torch.full((2, 3), torch.nan)
    m = torch.tensor([[0.0, -torch.inf, 1.0], [2.0, 3.0, -torch.inf]])
    keys = torch.zeros(2, 3, dtype=torch.int64)
    found = without_blind(Means(m, nan, nan, nan, nan, nan[..., None], keys))
    blind = m.isneginf()
    for x in (found.rest + 1, found.t, found.norm, found.o[..., 0]):
        assert (x[blind] == 0).all()
        assert x[~blind].isnan().all()
    assert found.argmax.tolist() == [[0, -1, 0], [0, 0, -1]]


@pytest.mark.parametrize("total", [1.0, 40.0])
def test_the_rest_of_a_row_keeps_its_digits(total):
    weights = torch.tensor([[3.0, 1e-9, 2e-9, 0.0], [1.0, 2.0, 3.0, 4.0], [5.0, 0.0, 0.0, 0.0]])
    weights *= (total / weights.sum(-1))[:, None]
    found = rest(weights, weights.argmax(-1), total)
    torch.testing.assert_close(found, torch.tensor([1e-9, 1.5, 0.0]), atol=0, rtol=1e-6)
