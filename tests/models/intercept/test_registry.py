"""Patches are applied once, counted, and taken back by the last user, whatever happens between."""

import sys
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attentropy as at
from attentropy.attention.hooks import hooks
from attentropy.models.intercept import registry
from tests.models.zoo import build


class Patch:
    """Counts how often it is applied and undone."""

    def __init__(self):
        self.applied = self.undone = 0

    def __call__(self):
        self.applied += 1
        return self.undo

    def undo(self):
        self.undone += 1


def test_the_first_user_applies_and_the_last_takes_back():
    patch, name = Patch(), object()
    first, second = registry.hold(name, patch), registry.hold(name, patch)
    assert (patch.applied, patch.undone) == (1, 0)
    first()
    assert (patch.applied, patch.undone) == (1, 0)
    second()
    assert (patch.applied, patch.undone) == (1, 1)
    registry.hold(name, patch)()
    assert (patch.applied, patch.undone) == (2, 2)


def test_releasing_twice_counts_once():
    patch, name = Patch(), object()
    first, second = registry.hold(name, patch), registry.hold(name, patch)
    first()
    first()
    assert patch.undone == 0
    second()
    assert patch.undone == 1


def test_a_patch_that_cannot_be_applied_is_not_held():
    name, patch = object(), Patch()

    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        registry.hold(name, broken)
    registry.hold(name, patch)()
    assert (patch.applied, patch.undone) == (1, 1)


def test_a_release_by_the_garbage_collector_waits_for_the_section_that_it_interrupts():
    name, patch, order = object(), Patch(), []
    first = registry.hold(name, patch)
    with registry.alone():
        first()  # as a finalizer may, at any point
        order.append(patch.undone)
        second = registry.hold(name, patch)
    assert order == [0]
    assert (patch.applied, patch.undone) == (1, 0)
    second()
    assert patch.undone == 1


def test_an_object_that_dies_releases_its_patch():
    class Thing:
        pass

    name, patch, thing = object(), Patch(), Thing()
    weakref.finalize(thing, registry.hold(name, patch))
    del thing
    assert patch.undone == 1


def test_an_attribute_is_put_back_as_it_was():
    class Parent:
        value = 1

    class Child(Parent):
        pass

    undo = registry.replace(Child, "value", 2)
    assert Child.value == 2
    undo()
    assert "value" not in vars(Child)
    undo = registry.replace(Parent, "value", 3)
    Parent.value = 4  # someone else
    undo()
    assert Parent.value == 4


def test_undoing_together_goes_backwards():
    order = []
    registry.together(lambda: order.append(1), lambda: order.append(2))()
    assert order == [2, 1]


def patched():
    """Everything that watching and steering replace, outside of models."""
    return (
        F.scaled_dot_product_attention,
        F.softmax,
        torch.softmax,
        torch.Tensor.softmax,
        torch.backends.mha.get_fastpath_enabled,
        nn.TransformerEncoder.forward,
        hooks.record,
        hooks.change,
        hooks.skip,
        "softmax" in vars(torch.Tensor),
        "_call_impl" in vars(nn.Sequential),
        "_call_impl" in vars(Attends),
    )


class Attends(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


def at_once(*jobs):
    """Run jobs in threads that switch all the time; what they raise is raised here."""
    wrong, before = [], sys.getswitchinterval()

    def run(job):
        try:
            job()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    if wrong:
        raise wrong[0]


def test_counts_hold_in_threads():
    name, patch = object(), Patch()

    def job():
        for _ in range(300):
            registry.hold(name, patch)()

    at_once(*[job] * 4)
    assert patch.applied == patch.undone > 0
    assert registry._held.get(name) is None


def test_threads_that_open_and_close_watches_leave_nothing_behind():
    before = patched()

    def watches():
        model = nn.Sequential(Attends())
        for _ in range(60):
            at.watch(model).start().stop()

    def changes():
        model = nn.Sequential(Attends())
        for _ in range(60):
            at.steer(model, temperature=2.0).undo()

    at_once(watches, watches, changes, changes)
    assert patched() == before
    assert not registry._held


def test_threads_that_watch_models_of_one_configuration_put_it_back():
    transformers = pytest.importorskip("transformers")
    config = build("llama").config
    before = config._attn_implementation

    def watches():
        model = transformers.LlamaModel(config)
        for _ in range(10):
            at.watch(model).start().stop()

    at_once(*[watches] * 4)
    assert config._attn_implementation == before


def test_watches_and_changes_may_end_in_any_order():
    before, models = patched(), [nn.Sequential(Attends()) for _ in range(2)]
    watch, handle = at.watch(models[0]).start(), at.steer(models[1], temperature=2.0)
    other = at.watch(models[1]).start()
    watch.stop()
    assert patched() != before
    handle.undo()
    handle.undo()
    other.stop()
    other.stop()
    assert patched() == before


def test_what_others_patch_meanwhile_stays(monkeypatch):
    def theirs(*args, **kwargs):
        return args[2]

    before = F.scaled_dot_product_attention
    with monkeypatch.context() as patch:
        watch = at.watch(Attends()).start()
        patch.setattr(F, "scaled_dot_product_attention", theirs)
        watch.stop()
        assert F.scaled_dot_product_attention is theirs
    F.scaled_dot_product_attention = before
