"""Spectra of maps and projections against linear algebra on the dense matrices."""

import pytest
import torch

import attentropy as at
from tests.analysis.maps import tensors, weights

an = at.analysis


def test_eigenvalues_are_those_of_the_map():
    q, k, _ = tensors()
    values = an.eigenvalues_dense(q, k)
    p = weights(q, k)
    torch.testing.assert_close(values[..., 0].abs(), torch.ones(2, 4).double())
    torch.testing.assert_close(values.sum(-1).real, p.diagonal(dim1=-2, dim2=-1).sum(-1))
    assert (values.abs().diff(dim=-1) <= 1e-12).all()
    with pytest.raises(ValueError, match="number of keys must be the number of queries 5"):
        an.eigenvalues_dense(q[:, :, :5], k)


def test_effective_rank_of_extremes():
    zero = torch.zeros(1, 1, 8, 8).double()
    eye = 100 * torch.eye(8).double()[None, None]
    assert an.effective_rank_dense(zero, zero).item() == pytest.approx(1.0, rel=1e-5)
    assert an.effective_rank_dense(eye, eye).item() == pytest.approx(8.0, rel=1e-6)
    assert an.effective_rank(torch.zeros(3)).item() == 0.0


def test_effective_rank_is_its_definition():
    q, k, _ = tensors(queries=7, keys=11)
    s = torch.linalg.svdvals(weights(q, k))
    torch.testing.assert_close(an.singular_values_dense(q, k), s)
    share = s / s.sum(-1, keepdim=True)
    want = (-(share * share.log()).sum(-1)).exp()
    torch.testing.assert_close(an.effective_rank_dense(q, k), want)


def test_rank_of_causal_maps():
    q, k, _ = tensors(size=0.5)
    found = an.causal_rank_dense(q, k, mask=at.causal)
    p = weights(q, k, mask=at.causal)
    torch.testing.assert_close(found.log_determinant, torch.linalg.slogdet(p).logabsdet)
    assert (found.numerical == 11).all()
    torch.testing.assert_close(found.smallest, torch.linalg.svdvals(p)[..., -1])
    big, keys, _ = tensors(batch=1, queries=64, keys=64, size=2.0)
    far = an.causal_rank_dense(big, keys, mask=at.causal)
    assert far.log_determinant.isfinite().all()
    assert (far.numerical < 64).any()
    with pytest.raises(ValueError, match="mask must be causal"):
        an.causal_rank_dense(q, k)


@pytest.mark.parametrize(
    "options", [{}, {"num_kv_heads": 2}, {"head_dim": 3, "value_dim": 5}, {"kdim": 9}]
)
def test_projection_spectrum_is_that_of_the_products(options):
    layer = at.nn.MultiheadAttention(12, 4, **options)
    group = 4 // layer.num_kv_heads
    q = layer.q_weight.double().unflatten(0, (4, -1))
    k = layer.k_weight.double().unflatten(0, (4 // group, -1)).repeat_interleave(group, 0)
    v = layer.v_weight.double().unflatten(0, (4 // group, -1)).repeat_interleave(group, 0)
    o = layer.o_weight.double().T.unflatten(0, (4, -1))
    found = an.projection_spectrum(layer)
    for got, a, b in ((found.scores, q, k), (found.values, v, o)):
        want = torch.linalg.svdvals(a.mT @ b)[:, : got.shape[-1]]
        torch.testing.assert_close(got, want.detach(), atol=1e-10, rtol=1e-6)


def test_projections_of_the_module_of_the_documents_and_of_none():
    layer = at.nn.EntropyInvariantAttention(16, 2)
    same = at.nn.MultiheadAttention(16, 2)
    parts = (layer.W_Q, layer.W_K, layer.W_V)
    with torch.no_grad():
        same.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        same.out_proj.weight.copy_(layer.W_O.weight)
    got, want = (at.analysis.projection_spectrum(x) for x in (layer, same))
    torch.testing.assert_close(tuple(got), tuple(want))
    with pytest.raises(TypeError, match="layer must be a layer of attentropy.nn .*, got Linear"):
        at.analysis.projection_spectrum(torch.nn.Linear(2, 2))
