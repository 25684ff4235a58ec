"""What was seen of every module."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attentropy as at
from attentropy.models.record.coverage import ModuleCoverage, summary, table


class Attends(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


class ByHand(nn.Module):
    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x


class Slips(nn.Module):
    def __init__(self, *, part):
        super().__init__()
        self.soft, self.part = functools.partial(torch.softmax, dim=-1), part

    def forward(self, x):
        x = F.scaled_dot_product_attention(x, x, x) if self.part else x
        return self.soft(x @ x.mT) @ x


class Idle(nn.Module):
    def forward(self, x):
        return x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = Attends(), ByHand(), Slips(part=True), Slips(part=False)
        self.e, self.unused = Idle(), Attends()

    def forward(self, x):
        return self.e(self.d(self.c(self.b(self.a(x)))))


@torch.no_grad()
def test_every_module_is_told_of():
    model = Model()
    w = at.watch(model).start()
    model(torch.randn(1, 2, 5, 4))
    with pytest.warns(RuntimeWarning, match="nothing was recorded of c, d"):
        w.stop()
    told = {row.module: (row.status, row.why, row.calls) for row in w.coverage()}
    slipped = "a softmax bound early"
    assert told == {
        "a": ("verified", "", 1),
        "b": ("beside", "attention computed by hand, observed at its softmax", 1),
        "c": ("partly", slipped, 1),
        "d": ("unseen", slipped, 0),
    }
    assert "a softmax bound early" in str(table(w.coverage()))


class Attention(nn.Module):
    """Attention by name, which slips by."""

    def __init__(self):
        super().__init__()
        self.slips = Slips(part=False)

    def forward(self, x):
        return self.slips(x)


@torch.no_grad()
def test_where_nobody_looked_below_python_it_is_said():
    model = nn.Sequential(Attends(), Attention())
    with at.watch(model, verify="never") as w:
        model(torch.randn(1, 2, 5, 4))
    told = {row.module: (row.status, row.why) for row in w.coverage()}
    assert told["0"] == ("verified", 'not compared: verify="never"')
    assert told["1"] == ("no attention", 'none visible from Python; verify="never" looks no deeper')


@torch.no_grad()
def test_what_was_compiled_was_not_compared():
    torch._dynamo.reset()
    model = nn.Sequential(Attends())
    with at.watch(model) as w:
        torch.compile(model, backend="eager")(torch.randn(1, 2, 5, 4))
    assert [(row.status, row.why) for row in w.coverage()] == [
        ("verified", "not compared: compiled")
    ]


class Block(nn.Module):
    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x):
        for part in self.children():
            x = part(x)
        return x


class Projected(nn.Module):
    """Attention by name only."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x):
        return self.proj(x)


class PostAttentionNorm(nn.Module):
    def forward(self, x):
        return x / x.norm()


@torch.no_grad()
def test_layers_of_a_hybrid_without_attention_are_named_and_containers_are_not():
    layers = [
        Block(attn=Block(core=Attends()), post_attention_norm=PostAttentionNorm(), mlp=Idle()),
        Block(mixer=Block(conv=Idle())),
        Block(linear_attn=Projected(), mlp=Block(parts=nn.ModuleList([Idle(), Idle()]))),
    ]
    layers[2].mlp.forward = lambda x: x
    model = nn.Sequential(*layers)
    model.unused_attention = Projected()
    model.forward = lambda x: layers[2](layers[1](layers[0](x)))
    with at.watch(model) as w:
        model(torch.randn(1, 2, 5, 4))
    assert [(row.module, row.status, row.why) for row in w.coverage()] == [
        ("0.attn.core", "verified", ""),
        ("1", "no attention", ""),
        ("2.linear_attn", "no attention", ""),
        ("unused_attention", "no attention", "it did not run"),
    ]
    assert summary(w.coverage()) == (
        "All attention was seen: 1 module verified, 3 modules without attention."
    )


def test_a_model_without_attention_has_one_row():
    model = nn.Sequential(Idle())
    w = at.watch(model).start()
    model(torch.ones(1))
    w.stop()
    assert [(row.module, row.status) for row in w.coverage()] == [("", "no attention")]


def test_what_was_missed_is_said_in_a_sentence():
    rows = [ModuleCoverage(module=str(i), status="unseen", why="flash_attn") for i in range(5)]
    assert summary(rows) == (
        "Not all attention was seen: 5 modules unseen; 0 (flash_attn), 1 (flash_attn), 2 (flash_attn) "
        "and 2 more."
    )
    assert summary([]) == ""
