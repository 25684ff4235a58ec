"""Rows of a kernel become what attend() returns."""

import torch

import attentropy as at
from attentropy.core.call import Rows
from attentropy.core.resolve import Options, resolve
from attentropy.kernels import reference
from attentropy.kernels.attended import attended


def call(**given):
    q, k = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8)
    return resolve(q, k, k, Options(**given))


def test_statistics_are_handed_on_and_counts_are_those_of_the_call():
    made = call(mask=at.causal)
    rows = reference.attend(made)
    out, stats = attended(made, rows)
    assert out is rows.out
    for name in ("entropy", "lse", "max_logit", "argmax", "collision"):
        assert getattr(stats, name) is getattr(rows, name)
    assert stats.visible.shape == (2, 4, 3)
    assert stats.visible[1, 3].tolist() == [3, 4, 5]
    assert stats.sink_mass is None


def test_a_sink_is_merged_in_head_by_head():
    sink = torch.tensor([-2.0, 0.0, 1.0, 30.0])
    made = call(sink=sink)
    rows = reference.attend(made)
    out, stats = attended(made, rows)
    share = 1 / (1 + (rows.lse - sink.view(1, 4, 1)).exp())
    torch.testing.assert_close(stats.sink_mass, share)
    torch.testing.assert_close(out, rows.out * (1 - share)[..., None], atol=1e-6, rtol=1e-5)
    assert torch.equal(stats.max_logit, rows.max_logit)


def test_the_mass_of_kernelised_weights_is_not_told():
    x = torch.ones(2, 4, 3)
    rows = Rows(x[..., None], None, None, None, None, x, x)
    assert attended(call(weights=at.Kernelised()), rows).stats.mass is None
    assert attended(call(weights=at.Linear()), rows).stats.mass is x
