"""A module is known to run exactly while it does, whatever ends its forward pass."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import attentropy as at
from attentropy.models.intercept import tracking
from attentropy.models.intercept.tracking import TRACKED
from attentropy.models.record.accumulators import Owner
from tests.models.zoo import build, inputs

X = torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(1))
Q = torch.randn(2, 3, 6, 8, generator=torch.Generator().manual_seed(2)) * 3
ENDS = [KeyboardInterrupt, SystemExit, GeneratorExit, ValueError]


class Attention(nn.Module):
    """One layer, which may be ended after it attends."""

    def __init__(self):
        super().__init__()
        self.project, self.error = nn.Linear(32, 96), None

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        if self.error is not None:
            raise self.error
        return out


class Special(Attention):
    pass


def model(*kinds):
    torch.manual_seed(0)
    return nn.Sequential(*(kind() for kind in kinds or (Attention, Attention)))


def assert_nothing_runs(watch, rows):
    """Attention that belongs to no model is neither steered nor counted."""
    assert tracking.current() is None
    assert not watch.recorder.inside
    dense = (Q @ Q.mT * 8**-0.5).softmax(-1) @ Q
    torch.testing.assert_close(F.scaled_dot_product_attention(Q, Q, Q), dense)
    torch.testing.assert_close(at.attend(Q, Q, Q).out, dense)
    assert sum(row.rows for row in watch.heads()) == rows


@pytest.mark.parametrize("error", ENDS)
@pytest.mark.parametrize("which", ["whole", "submodule"])
def test_whatever_ends_a_forward_pass_the_module_no_longer_runs(error, which):
    net = model()
    handle, watch = at.steer(net, temperature=9.0), at.watch(net).start()
    net[1].error = error()
    with pytest.raises(error):
        net(X) if which == "whole" else net[1](X)
    rows = 14 * 4 * (2 if which == "whole" else 1)
    assert_nothing_runs(watch, rows)
    net[1].error = None
    net(X)
    assert {row.call for row in watch.heads()} == {0}  # the next pass starts anew
    watch.stop()
    handle.undo()


@pytest.mark.parametrize("error", ENDS)
def test_an_interrupted_generation_leaves_nothing_running(error):
    pytest.importorskip("transformers")
    llama = copy.deepcopy(build("llama", "sdpa"))
    ids, steps = inputs("llama", padded=False)["input_ids"], []

    def stop(*_):
        steps.append(1)
        if len(steps) == 3:
            raise error()

    handle, watch = at.steer(llama, temperature=9.0), at.watch(llama).start()
    llama.model.layers[1].mlp.register_forward_hook(stop)
    with pytest.raises(error):
        llama.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert_nothing_runs(watch, sum(row.rows for row in watch.heads()))
    watch.stop()
    handle.undo()
    assert llama.config._attn_implementation == "sdpa"


@pytest.mark.slow
@pytest.mark.parametrize("error", ENDS)
def test_an_interrupted_compiled_pass_leaves_nothing_running(error):
    torch._dynamo.reset()
    net = model()

    def stop(*_):
        raise error()

    compiled = torch.compile(net, backend="aot_eager")
    watch = at.watch(net).start()
    with torch.no_grad():
        compiled(X)
        rows = sum(row.rows for row in watch.heads())
        net.append(nn.Identity())
        net[2].register_forward_hook(torch.compiler.disable(stop))
        with pytest.raises(error):
            compiled(X)
    assert tracking.current() is None
    assert sum(row.rows for row in watch.heads()) >= rows
    watch.stop()
    torch._dynamo.reset()


def test_modules_are_on_the_stack_while_they_run():
    net, seen = model(), []
    net[0].register_forward_hook(lambda *_: seen.append(list(tracking.STATE.running)))
    _, untrack = tracking.track([net, net[0]])
    net(X)
    assert seen == [[net, net[0]]]
    untrack()
    net(X)
    assert seen[1] == []
    assert tracking.current() is None


def test_classes_are_put_back_and_other_instances_left_alone():
    one, other = model(), model()
    before = [vars(kind).get("_call_impl") for kind in (nn.Sequential, Attention)]
    _, first = tracking.track(list(one))
    _, second = tracking.track(list(one))
    assert "_call_impl" in vars(Attention)
    other(X)
    assert tracking.current() is None
    first()
    assert TRACKED in vars(one[0])
    second()
    assert [vars(kind).get("_call_impl") for kind in (nn.Sequential, Attention)] == before
    assert TRACKED not in vars(one[0])
    assert not any(key.startswith("_attentropy") for key in vars(one[0]))


@pytest.mark.parametrize("order", [(Attention, Special), (Special, Attention)])
def test_a_class_and_its_subclass_are_each_entered_once(order):
    net, depths = model(*order), []
    for layer in net:
        layer.register_forward_hook(lambda *_: depths.append(len(tracking.STATE.running)))
    with at.watch(net) as w:
        net(X)
    assert depths == [2, 2]
    assert {row.rows for row in w.heads()} == {14}
    assert {row.call for row in w.heads()} == {0}


def test_shallow_copies_run_their_own_parameters():
    net = model()
    with at.watch(net) as w:
        twin = copy.copy(net[0])
        replica = net[0]._replicate_for_data_parallel()
        for other in (twin, replica):
            other._modules = {"project": nn.Linear(32, 96)}
            assert not torch.allclose(other(X), net[0](X), atol=1e-3)
        net(X)
    assert w.heads()


def test_bare_modules_may_hold_others():
    model = nn.Module()
    model.first, model.parts = nn.MultiheadAttention(8, 2), nn.Module()
    model.parts.attention = nn.MultiheadAttention(8, 2)
    before = nn.Module._call_impl
    x = torch.randn(3, 1, 8)
    with at.watch(model) as w:
        model.first(x, x, x)
        model.parts.attention(x, x, x)
        assert nn.Module._call_impl is before
    assert {row.layer for row in w.heads()} == {"first", "parts.attention"}


def test_torchscript_is_left_alone():
    class Inner(nn.Module):
        def forward(self, x):
            return 2 * x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from torch 2.9 on
        scripted = torch.jit.script(Inner())
    net = nn.Sequential(Attention(), scripted)
    with at.watch(net) as w:
        net(X)
    assert TRACKED not in vars(scripted)
    assert {row.layer for row in w.heads()} == {"0"}


@pytest.mark.slow
@pytest.mark.parametrize("compiled", ["whole", "layers"])
@torch.no_grad()
def test_modules_compiled_in_place_are_counted_apart(compiled):
    torch._dynamo.reset()
    net = model()
    plain = net(X)
    for part in [net] if compiled == "whole" else net:
        part.compile(backend="aot_eager", fullgraph=True)
    before = [vars(part).get("_compiled_call_impl") for part in net.modules()]
    with at.watch(net, every=2) as w:
        for _ in range(4):
            torch.testing.assert_close(net(X), plain)
    assert [(row.layer, row.rows) for row in w.heads()[::4]] == [("0", 28), ("1", 28)]
    assert [vars(part).get("_compiled_call_impl") for part in net.modules()] == before
    torch._dynamo.reset()


@pytest.mark.slow
@torch.no_grad()
def test_a_compiled_wrapper_counts_passes():
    torch._dynamo.reset()
    compiled = torch.compile(model(), backend="aot_eager", fullgraph=True)
    with at.watch(compiled, every=2) as w:
        for _ in range(4):
            compiled(X)
    assert [(row.layer, row.rows) for row in w.heads()[::4]] == [("0", 28), ("1", 28)]
    torch._dynamo.reset()


def test_where_autograd_stands_is_known():
    found = []

    class Looks(nn.Module):
        def forward(self, x):
            found.append((tracking.in_checkpoint(), tracking.in_backward()))
            return x * x

    x = torch.ones(2, requires_grad=True)
    Looks()(x).sum().backward()
    checkpoint(Looks(), x, use_reentrant=False).sum().backward()
    checkpoint(Looks(), x, use_reentrant=True).sum().backward()
    assert found == [(False, False), (True, False), (True, True), (False, False), (False, True)]


def test_computing_is_told_and_nests():
    with tracking.computing():
        with tracking.computing():
            pass
        assert tracking.STATE.computing
    assert not tracking.STATE.computing


def test_a_module_is_watched_by_one_watch():
    attached, untrack = tracking.track([nn.Identity(), nn.Identity()])
    owners = [Owner("one", None), Owner("two", None)]
    first = tracking.watch(attached[1:], owners[1:])
    with pytest.raises(at.AttentropyError, match="two is being watched already"):
        tracking.watch(attached, owners)
    assert [one.owner for one in attached] == [None, owners[1]]
    first()
    assert [one.owner for one in attached] == [None, None]
    untrack()


def test_changes_are_taken_off_in_any_order():
    (attached,), untrack = tracking.track([nn.Identity()])
    one, two = object(), object()
    off = attached.steer(one)
    attached.steer(two)
    off()
    assert attached.changes == (two,)
    untrack()
