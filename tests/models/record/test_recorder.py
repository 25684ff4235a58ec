"""Which calls count, whose padding is whose, and how what was missed is told."""

import pytest
import torch
from torch import nn

import attentropy as at
from attentropy.models.record.recorder import SAMPLE_ELEMENTS, SMALL, Recorder, each, listed


def recorder(**options):
    return Recorder(**{"every": 1, "keep": "mean", "sample": 8, **options})


def test_one_pass_in_so_many_is_recorded():
    one, wanted = recorder(every=3), []
    for _ in range(7):
        one.begin(nn.Identity())
        wanted.append(one.wants())
        one.end()
    assert wanted == [True, False, False, True, False, False, True]
    assert one.forwards == 7


def test_evaluation_is_left_out_where_training_is_asked_for():
    one, model = recorder(), nn.Identity()
    one.training_only = True
    one.begin(model.eval())
    assert not one.wants()
    one.begin(model.train())
    assert one.wants()


def test_a_recomputation_is_not_recorded():
    one, found = recorder(), []

    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            found.append(one.wants())
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            found.append(one.wants())
            return grad

    Looks.apply(torch.ones(1, requires_grad=True)).sum().backward()
    assert found == [True, False]


class Sized(nn.Module):
    def forward(self, q):
        return nn.functional.scaled_dot_product_attention(q, q, q)


@pytest.mark.parametrize("queries", [4, 64, 90, 91, 513, 4096])
def test_short_calls_are_looked_at_whole_and_samples_are_bounded(queries):
    model, q = Sized(), torch.randn(1, 2, queries, 8)
    with torch.no_grad(), at.watch(model) as w:
        model(q)
    ((_, slot),) = w.places()
    row = 2 * queries
    most = queries if queries * row <= SMALL else 8
    want = min(queries, most, max(1, SAMPLE_ELEMENTS // row))
    assert slot.sampled[0].tolist() == [want] * 2


def test_what_was_missed_is_told_in_one_sentence():
    missed = {"a": "by hand", "b": "by hand", "": "nested tensors"}
    assert each(missed) == "a, b (by hand); the model (nested tensors)"
    assert listed(missed) == "nothing was recorded of a, b (by hand); the model (nested tensors)"
