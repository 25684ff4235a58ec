"""The call that kernels receive, and the rows they return."""

import torch

import attentropy as at
from attentropy.core.call import Call, Rows, replace_tensors
from attentropy.core.resolve import Options, resolve


def call(**given):
    q, k = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8)
    return resolve(q, k, k[..., :6], Options(**given))


def test_sizes_and_counts_are_those_of_what_is_seen():
    made = call(mask=at.causal)
    assert made.extent[:4] == (2, 4, 3, 5)
    assert made.visible.expand(2, 4, 3)[0, 0].tolist() == [3, 4, 5]
    assert made.visible is made.seen.visible


def test_nothing_is_there_that_was_not_asked_for():
    made = call()
    for name in ("bias", "relative", "slopes", "softcap", "sink", "additive", "seed"):
        assert getattr(made, name) is None
    assert made.dropout == 0.0


def test_tensors_are_replaced_by_name():
    made = call()
    other = replace_tensors(made, {"q": made.q + 1, "bias": None})
    assert torch.equal(other.q, made.q + 1)
    assert isinstance(other, Call)
    assert all(getattr(other, n) is getattr(made, n) for n in Call._fields if n != "q")


def test_rows_without_what_a_kernel_does_not_know():
    x = torch.zeros(1, 1, 2)
    rows = Rows(x[..., None], None, None, None, None, x)
    assert rows.mass is None
    assert rows.log_l is None
