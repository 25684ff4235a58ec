"""Which modules may call attention, by class and name."""

import gc
import weakref

import pytest
import torch
from torch import nn

from attentropy.models.intercept import candidates
from attentropy.models.intercept.candidates import (
    Structure,
    device_of,
    heads_of,
    is_plain,
    looks_like_attention,
    looks_like_cross,
    may_attend,
    plain_name,
)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.act = nn.Linear(2, 2), nn.ReLU()


class Own(nn.Module):
    pass


def test_leaves_of_torch_are_left_out():
    net = nn.Sequential(Block(), Own(), nn.Linear(2, 2), nn.MultiheadAttention(4, 2))
    assert [name for name, _ in may_attend(net)] == ["", "0", "1", "3"]


class FeedForward(nn.Module):
    def __init__(self, act=None):
        super().__init__()
        self.up, self.down, self.act, self.scale = nn.Linear(2, 4), nn.Linear(4, 2), act, 2.0

    def forward(self, x):
        return self._out(torch.relu(self.up(x)) if self.act is None else self.act(self.up(x)))

    def _out(self, x):
        return self.down(x) * self.scale


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.to(torch.float32).pow(2).mean(-1, keepdim=True))


class Hidden(FeedForward):
    """Attends in a method that its forward calls."""

    def _out(self, x):
        return torch.softmax(x @ x.mT, -1) @ self.down(x)


class Called(FeedForward):
    def __call__(self, x):
        return torch.softmax(x @ x.mT, -1) @ super().__call__(x)


class Listed(FeedForward):
    def forward(self, x):
        return sum(f(x) for f in (self.up, self.down))


def with_forward():
    """A module whose forward was replaced."""
    module = FeedForward()
    module.forward = lambda x: torch.softmax(x @ x.mT, -1) @ x
    return module


@pytest.mark.parametrize(
    ("module", "plain"),
    [
        (FeedForward(), True),
        (FeedForward(nn.GELU()), True),
        (FeedForward(torch.sigmoid), True),
        (Norm(), True),
        (FeedForward(nn.Softmax(-1)), False),
        (FeedForward(torch.softmax), False),
        (FeedForward(FeedForward(Hidden())), False),
        (Hidden(), False),
        (Called(), False),
        (Listed(), False),
        (with_forward(), False),
        (nn.MultiheadAttention(4, 2), False),
        (Own(), False),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else "",
)
def test_code_shows_what_cannot_attend(module, plain):
    assert is_plain(module) == plain


def test_plain_parts_are_not_followed_but_layers_and_what_is_named_attention_are():
    net = nn.ModuleDict({"norm": Norm(), "mlp": Hidden(), "attn": Norm()})
    net["layers"] = nn.ModuleList([FeedForward(), Norm()])
    names = [name for name, _ in may_attend(net)]
    assert names == ["", "mlp", "attn", "layers", "layers.0", "layers.1"]


def test_norms_that_are_named_after_attention_are_not_followed():
    net = nn.ModuleDict({"post_attention_layernorm": Norm(), "attention_norm": Hidden()})
    assert [name for name, _ in may_attend(net)] == ["", "attention_norm"]


def changes():
    """Ways to change a model whose structure is known, each with what it then has."""

    def replaced(net):
        net[0] = Block()

    def renamed(net):
        net.add_module("9", net._modules.pop("1"))

    def added(net):
        net[1].more = Own()

    def removed(net):
        net[0] = None

    def reclassed(net):
        net[1].__class__ = Other

    return [replaced, renamed, added, removed, reclassed]


class Other(Own):
    pass


@pytest.mark.parametrize("change", changes())
def test_a_structure_is_known_until_the_model_changes(change, monkeypatch):
    net = nn.Sequential(Block(), Own(), nn.Linear(2, 2))
    net.again = net[0]  # a module that stands in two places
    asked = []
    plain = candidates.may_attend
    monkeypatch.setattr(candidates, "may_attend", lambda model: asked.append(1) or plain(model))
    for _ in range(3):
        known = Structure.of(net)
        assert known.named == list(plain(net))
        assert known.kinds == {type(module) for module in net.modules()}
    assert len(asked) == 1
    change(net)
    known = Structure.of(net)
    assert known.named == list(plain(net))
    assert known.kinds == {type(module) for module in net.modules()}
    assert len(asked) == 2


def test_a_structure_keeps_no_model_alive():
    net = nn.Sequential(Block())
    Structure.of(net)
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


def test_the_device_of_a_model_is_that_of_its_first_parameter_with_memory():
    assert device_of(nn.ReLU()).type == "cpu"
    away, here = nn.Linear(2, 2, device="meta"), nn.Linear(2, 2)
    assert device_of(away).type == "meta"
    assert device_of(nn.Sequential(away, here)) == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("_orig_mod", ""),
        ("module.layers.0", "layers.0"),
        ("layers.0._fsdp_wrapped_module.attn", "layers.0.attn"),
        ("_orig_mod.module.a._checkpoint_wrapped_module", "a"),
        ("modules.0", "modules.0"),
    ],
)
def test_wrappers_are_no_part_of_a_name(name, plain):
    assert plain_name(name) == plain


def test_attention_and_cross_attention_are_told_by_name():
    assert looks_like_attention("layers.0.self_attn", Own())
    assert looks_like_attention("", nn.MultiheadAttention(4, 2))
    assert not looks_like_attention("attn.project", Own())
    assert looks_like_cross("decoder.encoder_attn", Own())
    assert looks_like_cross("decoder.EncDecAttention", Own())
    assert not looks_like_cross("crossing.attn", Own())
    told = Own()
    told.is_cross_attention = True
    assert looks_like_cross("", told)


def test_the_number_of_heads_is_asked_of_the_module_and_its_configuration():
    module = Own()
    assert heads_of(module) is None
    module.config = Own()
    module.config.n_head = 3
    assert heads_of(module) == 3
    module.num_heads = 5
    assert heads_of(module) == 5


def test_heads_that_a_class_or_a_wrapper_tells_are_found():
    class Counted(nn.Module):
        n_heads = 7

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Counted()

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

    assert heads_of(Counted()) == heads_of(Around()) == 7
