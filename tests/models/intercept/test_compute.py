"""A call that a model makes: its output, its weights, what is recorded, what is left as it was."""

import copy
from contextlib import ExitStack

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import attentropy as at
from attentropy.attention.hooks import hooks
from attentropy.core.errors import UnsupportedError
from attentropy.core.masks import Extent
from attentropy.core.resolve import Options
from attentropy.models.intercept import compute, registry, tracking
from attentropy.models.intercept.compute import (
    Intercepted,
    ModelInputs,
    ask,
    is_cross,
    served,
    weights_of,
)
from attentropy.models.record.model_masks import causal_from_end, read_table
from attentropy.models.steer.changes import Change
from attentropy.models.steer.context_parallel import Spreading

Q, K = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8)
EXTENT = Extent(2, 4, 6, 6, Q.device)


def given(mask=None, **options):
    scale = options.pop("scale", 8**-0.5)
    mask = causal_from_end(EXTENT) if mask is None else mask
    return ModelInputs(Q, K, K, Options(scale=scale, **options), mask)


def dense(inputs, factor=1.0):
    """Weights in float64 by plain products, with a column for the sink if there is one."""
    options = inputs.options
    s = inputs.q.double() @ inputs.k.double().repeat_interleave(2, 1).mT * options.scale * factor
    if options.softcap is not None:
        s = options.softcap * (s / options.softcap).tanh()
    if options.bias is not None:
        s = s + options.bias.double()
    s = s.masked_fill(~inputs.mask.seen.dense(), -torch.inf)
    if options.sink is not None:
        s = torch.cat([s, options.sink.double().view(1, 4, 1, 1).expand(2, 4, 6, 1)], -1)
    return s.softmax(-1).nan_to_num(0.0)


def never():
    raise AssertionError("the model's own attention is not asked")


def intercepted(inputs, own=never, **more):
    return Intercepted(
        way="test",
        read=lambda: inputs,
        own=own,
        output=lambda result: result[0],
        result=lambda out, weights: (out, weights),
        **more,
    )


OPTIONS = {
    "plain": {},
    "bias": {"bias": torch.randn(1, 4, 6, 6)},
    "softcap": {"softcap": 0.5},
    "sink": {"sink": torch.randn(4)},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_output_and_weights_are_those_of_dense_attention(name):
    inputs = given(**OPTIONS[name])
    out, maps = served(nn.Identity(), intercepted(inputs, maps=True), None)
    want = dense(inputs)
    torch.testing.assert_close(maps.double(), want[..., :6], atol=1e-5, rtol=1e-4)
    mixed = want[..., :6] @ K.double().repeat_interleave(2, 1)
    torch.testing.assert_close(out.double(), mixed, atol=1e-5, rtol=1e-4)
    assert served(nn.Identity(), intercepted(inputs), None)[1] is None


def test_a_query_that_sees_nothing_has_no_weights():
    mask = read_table(torch.ones(6, 6).tril(-1).bool(), EXTENT)
    maps = weights_of(ask(nn.Identity(), given(mask)))
    assert maps[:, :, 0].abs().sum() == 0
    torch.testing.assert_close(maps[:, :, 1:].sum(-1), torch.ones(2, 4, 5))


def test_weights_that_are_no_softmax_are_not_given():
    inputs = given(weights=at.ReluSquared())
    assert weights_of(ask(nn.Identity(), inputs)) is None


def test_a_steered_mask_is_part_of_the_call():
    module = nn.Identity()
    (attached,), untrack = tracking.track([module])
    attached.steer(Change(mask=at.lookback(2)))
    asked = ask(module, given())
    untrack()
    want = (at.causal & at.lookback(2)).dense(EXTENT)
    assert torch.equal(asked.call.seen.dense(), want)
    assert torch.equal(asked.mask.seen.dense(), want)
    assert asked.mask.choice_from is None


def test_a_bias_may_hide_keys_so_that_a_choice_is_counted_row_by_row():
    assert ask(nn.Identity(), given()).mask.choice_from == 1
    assert ask(nn.Identity(), given(bias=torch.zeros(6, 6))).mask.choice_from is None


class Dropping(nn.Module):
    """Attention with dropout, which may be checkpointed."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attn = nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = self.attn(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_watching_draws_no_random_number_that_a_recomputation_does_not(reentrant, inside):
    model, x = Dropping(), torch.randn(2, 7, 16, requires_grad=True)
    torch.manual_seed(1)
    plain = checkpoint(model, x, use_reentrant=False)
    (want,) = torch.autograd.grad(plain.square().sum(), x)
    torch.manual_seed(1)
    with at.watch(model):
        out = checkpoint(model, x, use_reentrant=reentrant)
        if inside:
            out.square().sum().backward()
    if not inside:
        out.square().sum().backward()
    if not reentrant:  # else another kernel draws, and the same again in the backward pass
        torch.testing.assert_close(out, plain)
        torch.testing.assert_close(x.grad, want)
    x.grad = None


def test_a_copy_of_a_watched_model_attends_as_ever():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=4,
    )  # fmt: skip
    model, ids = transformers.LlamaModel(config).eval(), torch.arange(7)[None]
    with torch.no_grad():
        plain = model(ids)[0]
        with at.watch(model) as w:
            model(ids)
            twin = copy.deepcopy(model)
        torch.testing.assert_close(twin(ids)[0], plain, atol=1e-5, rtol=1e-5)
    assert {row.rows for row in w.heads()} == {6}


def test_cross_attention_is_told_by_the_watch_or_by_the_class():
    class CrossAttention(nn.Module):
        pass

    module = CrossAttention()
    assert is_cross(module, EXTENT)
    assert not is_cross(nn.Identity(), EXTENT)
    (attached,), untrack = tracking.track([module])
    tracking.watch([attached], [at.models.record.accumulators.Owner("", None, kind="self")])
    assert not is_cross(module, EXTENT)
    untrack()


def test_calls_of_attend_by_a_module_on_a_ring_are_refused():
    class Calls(nn.Module):
        def forward(self, q):
            return at.attend(q, q, q).out

    module = Calls()
    with ExitStack() as undone:  # also where the test fails
        undone.callback(at.steer(module, scale=0.5).undo)
        (attached,), untrack = tracking.track([module])
        undone.callback(untrack)
        undone.callback(registry.replace(attached, "ring", Spreading(None, None)))
        with pytest.raises(UnsupportedError, match="give context_parallel= to the layer"):
            module(Q)
    assert hooks.change is None


def test_what_is_not_recorded_is_noted_once_for_its_module():
    class Calls(nn.Module):
        def forward(self, q):
            compute.pass_by(tracking.current(), "in a way of its own")
            return q

    module = Calls()
    watch = at.watch(module).start()
    module(Q)
    watch.stop()
    assert watch.recorder.missed == {"": "in a way of its own"}
    compute.pass_by(module, "after the watch")
    compute.pass_by(None, "of nobody")
    assert watch.recorder.missed == {"": "in a way of its own"}
