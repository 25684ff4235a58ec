"""Rows of weights, block by block, are the rows of the dense map."""

import pytest
import torch

import attentropy as at
from attentropy.analysis import _rows
from tests.analysis.maps import CASES, tensors, weights


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("elements", [1, 100, 1 << 20])
def test_map_dense_is_the_map(name, elements, monkeypatch):
    monkeypatch.setattr(_rows, "ELEMENTS", elements)
    q, k, _ = tensors(queries=7, keys=11)
    got = at.analysis.map_dense(q, k, **CASES[name])
    torch.testing.assert_close(got, weights(q, k, **CASES[name]))


def test_a_sink_takes_its_share():
    q, k, _ = tensors()
    sink = torch.tensor([0.0, 1.0, -1.0, 3.0], dtype=torch.double)
    got = at.analysis.map_dense(q, k, sink=sink)
    torch.testing.assert_close(got, weights(q, k, sink=sink))


def test_never_holds_the_table(monkeypatch):
    monkeypatch.setattr(_rows, "ELEMENTS", 4 * 64 * 8)
    q, k, _ = tensors(batch=1, queries=64, keys=64)
    sizes = [part.weights.shape for part in _rows.rows(q, k)]
    assert len(sizes) == 8
    assert all(shape == (4, 8, 64) for shape in sizes)


def test_refusals():
    q, k, _ = tensors()
    with pytest.raises(ValueError, match="option must be one of .*, got 'dropout'"):
        at.analysis.map_dense(q, k, dropout=0.5)
    with pytest.raises(NotImplementedError, match=r"Kernelised\(feature='elu'\) have no logits"):
        at.analysis.map_dense(q, k, weights=at.Kernelised())
    with pytest.raises(ValueError, match="q must be of shape"):
        at.analysis.map_dense(q[0], k)
    with pytest.raises(ValueError, match="number of keys must be >= 1, got 0"):
        at.analysis.map_dense(q, k[:, :, :0])


def test_empty_and_wrong_inputs_are_named():
    q = torch.randn(1, 2, 0, 4)
    k = torch.randn(1, 2, 3, 4)
    with pytest.raises(ValueError, match="the size of q in queries must be >= 1, got 0"):
        at.analysis.map_dense(q, k)
    with pytest.raises(TypeError, match="k must be a tensor, got str"):
        at.analysis.map_dense(k, "keys")
    with pytest.raises(ValueError, match=r"v must be of shape \[B,Hk,K,Dv\], got \[2, 3, 4\]"):
        at.analysis.diameter(k[0])
