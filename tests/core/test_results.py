import io
import math

import pytest
import torch
from torch.utils import _pytree

import attentropy as at


def attended(**given):
    q, k, v = (torch.randn(2, 3, 6, 8, dtype=torch.float64) for _ in range(3))
    return at.attend(q, k, v, mask=at.causal, **given)


def test_derived_statistics():
    stats = attended().stats
    n = stats.visible.double()
    torch.testing.assert_close(stats.perplexity, stats.entropy.exp())
    torch.testing.assert_close(stats.deficit, n.log() - stats.entropy)
    torch.testing.assert_close(stats.sparsity, 1 / (n * stats.collision).sqrt())
    torch.testing.assert_close(stats.gradient_flow, 1 - stats.collision)
    torch.testing.assert_close(stats.mean_logit, stats.lse - stats.entropy)
    torch.testing.assert_close(
        stats.normalized_entropy[..., 1:], (stats.entropy / n.log())[..., 1:]
    )
    assert stats.normalized_entropy[..., 0].isnan().all()


def test_per_head_skips_rows_without_a_choice():
    stats = attended().stats
    heads = stats.per_head()
    assert heads.entropy.shape == (3,)
    torch.testing.assert_close(heads.entropy, stats.entropy[..., 1:].mean((0, 2)))
    torch.testing.assert_close(
        heads.normalized_entropy, stats.normalized_entropy[..., 1:].mean((0, 2))
    )
    torch.testing.assert_close(heads.max_logit, stats.max_logit[..., 1:].amax((0, 2)))
    assert heads.rows.tolist() == [10, 10, 10]
    assert torch.equal(heads["entropy"], heads.entropy)
    assert "sink_mass" not in list(heads)
    assert dict(heads).keys() == set(heads.keys())
    with pytest.raises(KeyError):
        heads["sink_mass"]


def test_per_head_without_any_choice_is_nan():
    q = torch.randn(1, 2, 1, 8)
    heads = at.attend(q, q, q).stats.per_head()
    assert heads.entropy.isnan().all()
    assert heads.max_logit.isnan().all()


def test_per_head_of_other_weights():
    heads = attended(weights=at.ReluSquared()).stats.per_head()
    assert heads.entropy is None
    assert heads.sparsity.isfinite().all()
    assert (
        at.attend(*(torch.randn(1, 2, 4, 8) for _ in range(3)), weights=at.Decay(0.5))
        .stats.per_head()
        .max_logit
        is None
    )


def test_blind_rows_in_derived_statistics():
    q = torch.randn(1, 1, 3, 8)
    stats = at.attend(q, q, q, mask=~at.full).stats
    assert stats.perplexity.tolist() == [[[1.0] * 3]]
    assert stats.deficit.tolist() == [[[0.0] * 3]]
    assert stats.top_probability.tolist() == [[[0.0] * 3]]
    assert stats.gradient_flow.tolist() == [[[0.0] * 3]]
    assert stats.mean_logit.tolist() == [[[-math.inf] * 3]]


def test_gradients_through_derived_statistics():
    q = torch.randn(1, 2, 5, 8, dtype=torch.float64, requires_grad=True)
    stats = at.attend(q, q, q, mask=at.causal).stats
    for name in ("perplexity", "sparsity", "deficit", "gradient_flow", "mean_logit"):
        (g,) = torch.autograd.grad(getattr(stats, name).sum(), q, retain_graph=True)
        assert g.isfinite().all(), name


def test_results_are_trees_of_tensors():
    result = attended()
    for tree in (result, result.stats.per_head()):
        leaves, spec = _pytree.tree_flatten(tree)
        again = _pytree.tree_unflatten(leaves, spec)
        assert type(again) is type(tree)
        assert any(x is leaves[0] for x in _pytree.tree_leaves(again))
    assert any(x is result.stats.entropy for x in _pytree.tree_leaves(result))


def test_a_layer_is_exported_with_its_statistics():
    layer, x = at.nn.MultiheadAttention(16, 2, mask=at.causal), torch.randn(1, 5, 16)
    file = io.BytesIO()
    torch.export.save(torch.export.export(layer, (x,)), file)
    file.seek(0)
    got, want = torch.export.load(file).module()(x), layer(x)
    assert torch.equal(got.out, want.out)
    assert torch.equal(got.stats.entropy, want.stats.entropy)


DERIVED = ["perplexity", "normalized_entropy", "sparsity", "deficit", "top_probability",
           "gradient_flow", "mean_logit"]  # fmt: skip


@pytest.mark.parametrize("name", DERIVED)
@pytest.mark.parametrize("kernel", ["auto", "reference", "streaming"])
def test_rows_without_a_choice_do_not_spoil_gradients(name, kernel):
    mask = torch.ones(6, 6).tril().bool()
    mask[3] = False
    sinks = (None, torch.zeros(3, dtype=torch.float64))
    for sink in sinks:
        q, k, v = (torch.randn(2, 3, 6, 8, dtype=torch.float64, requires_grad=True) for _ in "qkv")
        stats = at.attend(q, k, v, mask=mask, sink=sink, kernel=kernel).stats
        chosen = getattr(stats, name)[stats.visible >= 2].sum()
        for loss in (chosen, getattr(stats.per_head(), name).sum()):
            (grad,) = torch.autograd.grad(loss, q, retain_graph=True)
            assert grad.isfinite().all()
            assert grad.abs().max() > 0


def test_a_row_that_sees_only_a_sink_is_neither_sparse_nor_flat():
    q = torch.randn(1, 1, 2, 4)
    mask = torch.tensor([[True, True], [False, False]])
    sparsity = at.attend(q, q, q, mask=mask, sink=torch.zeros(1)).stats.sparsity
    assert sparsity.isnan().flatten().tolist() == [False, True]
