"""Attention that slips by what is patched is found below it."""

import functools
import subprocess
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attentropy as at
from attentropy.models.intercept import census

X = torch.randn(2, 3, 6, 4)


class Attends(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x)


class Weighs(nn.Module):
    """Attention whose weights are made by a function that is kept in the module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x @ x.mT) @ x


def by_hand(s):
    e = (s - s.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


SLIPS = {
    "a softmax bound early": functools.partial(torch.softmax, dim=-1),
    r"log_softmax\(...\).exp\(\)": lambda s: s.log_softmax(-1).exp(),
    r"exp\(s\) / sum\(exp\(s\)\)": by_hand,
    r"exp\(s - logsumexp\(s\)\)": lambda s: (s - s.logsumexp(-1, keepdim=True)).exp(),
}


@pytest.mark.parametrize("how", SLIPS)
@torch.no_grad()
def test_what_slips_by_is_named_every_time(how):
    model = nn.Sequential(Attends(), Weighs(SLIPS[how]))
    plain = model(X)
    for _ in range(2):  # the second watch remembers
        w = at.watch(model).start()
        assert torch.equal(model(X), plain) or _
        with pytest.warns(RuntimeWarning, match=rf"nothing was recorded of 1 \({how}\)"):
            w.stop()
        assert {row.layer for row in w.heads()} == {"0"}


class DividesLater(nn.Module):
    """Exponentials are multiplied by values, and divided by their sum afterwards."""

    def __init__(self, hide):
        super().__init__()
        self.hide = hide

    def forward(self, x):
        s = x @ x.mT
        e = (s - s.amax(-1, keepdim=True)).exp()
        e = e.masked_fill(~torch.ones(6, 6).tril().bool(), 0.0) if self.hide else e
        return (e @ x) / e.sum(-1, keepdim=True)


@pytest.mark.parametrize("hide", [False, True])
@torch.no_grad()
def test_weights_that_are_divided_after_the_product_are_named(hide):
    model = nn.Sequential(Attends(), DividesLater(hide))
    said = r"recorded of 1 \(exp\(s\), divided by its sum later"
    with pytest.warns(RuntimeWarning, match=said), at.watch(model):
        model(X)
    handle = at.steer(model, temperature=2.0)
    with pytest.warns(RuntimeWarning, match=r"left alone 1 \(exp\(s\), divided by its sum later"):
        model(X)
    handle.undo()


@torch.no_grad()
def test_exponentials_that_are_no_weights_are_not_named():
    class Features(nn.Module):
        """Linear attention of exponential features."""

        def forward(self, x):
            q = k = x.exp()
            return q @ (k.mT @ x) / (q * k.sum(-2, keepdim=True)).sum(-1, keepdim=True)

    model = nn.Sequential(Attends(), Features())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with at.watch(model):
            model(X)


@torch.no_grad()
def test_an_operator_bound_in_a_closure_is_named():
    kept = F.scaled_dot_product_attention
    model = nn.Sequential(Attends(), Weighs(lambda s: s.softmax(-1)))
    model[1].forward = lambda x: kept(x, x, x)
    w = at.watch(model).start()
    model(X)
    with pytest.warns(RuntimeWarning, match=r"nothing was recorded of 1 \(.*scaled_dot_product"):
        w.stop()


@torch.no_grad()
def test_weights_are_followed_to_the_product():
    model = nn.Sequential(Weighs(lambda s: F.dropout(s.softmax(-1).to(torch.float32), 0.0).clone()))
    with at.watch(model) as w:
        model(X)
    assert {row.rows for row in w.heads()} == {12}


@torch.no_grad()
def test_weights_may_be_multiplied_in_pieces_and_routers_are_no_attention():
    class Pieces(nn.Module):
        num_heads = 3

        def __init__(self):
            super().__init__()
            self.experts = nn.Linear(4, 4)

        def forward(self, x):
            p = (x @ x.mT).softmax(-1)
            x = p[..., :4] @ x[..., :4, :] + p[..., 4:] @ x[..., 4:, :]
            return x + F.linear(x.softmax(-1)[..., :3].contiguous(), self.experts.weight[:, :3])

    model = nn.Sequential(Pieces())
    with at.watch(model) as w:
        model(X)
    assert {(row.call, row.rows) for row in w.heads()} == {(0, 12)}


@torch.no_grad()
def test_weights_that_are_padded_and_sheared_before_they_meet_values_are_attention():
    class Band(nn.Module):
        """Each of 4 queries sees 3 keys, the diagonal and those after it."""

        def forward(self, q, k):
            p = torch.einsum("bqd,bqkd->bqk", q, k.unfold(1, 3, 1).mT).softmax(-1)
            padded = F.pad(p, (0, 4)).flatten(1)[:, :-4].reshape(2, 4, 6)
            return padded @ k

    model = Band()
    q, k = torch.randn(2, 4, 5), torch.randn(2, 6, 5)
    with at.watch(model) as w:
        model(q, k)
    p = torch.stack([(q[:, i] * k[:, i + j]).sum(-1) for i in range(4) for j in range(3)], -1)
    want = torch.special.entr(p.double().view(2, 4, 3).softmax(-1)).sum(-1).mean()
    assert [row.rows for row in w.heads()] == [8]
    assert w.heads()[0].entropy == pytest.approx(float(want), abs=1e-6)


@torch.no_grad()
def test_tokens_that_are_shared_out_among_fewer_groups_are_attention():
    class Groups(nn.Module):
        def forward(self, groups, tokens):
            return (groups @ tokens.mT).softmax(-2) @ tokens

    model = Groups()
    with at.watch(model) as w:
        model(torch.randn(2, 3, 5), torch.randn(2, 9, 5))
    assert [(row.rows, row.length) for row in w.heads()] == [(18, 3)]


def test_a_census_is_taken_of_each_kind_of_call_once():
    model = nn.Linear(2, 2)
    assert census.is_new(model, (torch.ones(3, 2),), {})
    assert not census.is_new(model, (torch.ones(5, 2),), {})
    assert census.is_new(model, (torch.ones(1, 2),), {})
    assert census.is_new(model, (torch.ones(3, 2),), {"use_cache": True})
    assert census.is_new(model.eval(), (torch.ones(3, 2),), {})


def test_gradients_and_interrupts_pass_through():
    model = nn.Sequential(nn.Linear(4, 4), Weighs(lambda s: s.softmax(-1)))
    model(X).sum().backward()
    want = model[0].weight.grad.clone()
    model.zero_grad()
    with at.watch(model):
        model(X).sum().backward()
    assert torch.equal(model[0].weight.grad, want)

    def stop(*_):
        raise KeyboardInterrupt

    other = nn.Sequential(Weighs(stop))
    with pytest.raises(KeyboardInterrupt), at.watch(other):
        other(X)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


@pytest.mark.whole
@torch.no_grad()
def test_compiled_functions_inside_of_a_model_run():
    torch._dynamo.reset()
    act = torch.compile(lambda x: F.gelu(x) * 2, fullgraph=True, backend="eager")
    model = nn.Sequential(Attends())
    model.forward = lambda x: act(model[0](x))
    plain = model(X)
    torch._dynamo.reset()
    with at.watch(model):
        assert torch.equal(model(X), plain)
    torch._dynamo.reset()


class Crossed(nn.Module):
    """Attention over what it is given; `how` says from which inputs queries and keys come."""

    def __init__(self, how, *, by_hand=False):
        super().__init__()
        self.how, self.by_hand = how, by_hand
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, y):
        one, other = {"cross": (x, y), "self": (x, x), "places": (x + y, x + y)}[self.how]
        q, k = (
            f(z).unflatten(-1, (2, 4)).transpose(1, 2) for f, z in ((self.q, one), (self.k, other))
        )
        if self.by_hand:
            return torch.softmax(q @ k.mT / 2, -1) @ k
        return F.scaled_dot_product_attention(q, k, k)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize(
    ("how", "kind"), [("cross", "cross"), ("self", "self"), ("places", "self")]
)
@torch.no_grad()
def test_keys_that_are_computed_from_another_input_are_cross(how, kind, by_hand):
    model, x, y = Crossed(how, by_hand=by_hand), torch.randn(2, 6, 8), torch.randn(2, 6, 8)
    with at.watch(model) as w:
        for _ in range(3):
            model(x, y)
    assert {row.kind for row in w.heads()} == {kind}
    assert {row.rows for row in w.heads()} == {36}


class Inner(nn.Module):
    def forward(self, q, k, v):
        q, k, v = (z.unflatten(-1, (2, 4)).transpose(1, 2) for z in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v)


class Outer(nn.Module):
    """Projects one input, or two, for a module that is given queries, keys and values."""

    def __init__(self):
        super().__init__()
        self.inner, self.q, self.kv = Inner(), nn.Linear(8, 8), nn.Linear(8, 16)

    def forward(self, x, y):
        return self.inner(self.q(x), *self.kv(y).chunk(2, -1))


@torch.no_grad()
def test_what_is_given_queries_keys_and_values_tells_nothing():
    x, y = torch.randn(2, 6, 8), torch.randn(2, 6, 8)
    for other, kind in ((x, "self"), (y, "cross")):
        model = Outer()
        with at.watch(model) as w:
            model(x, other)
        assert {row.kind for row in w.heads()} == {kind}


@torch.no_grad()
def test_a_softmax_by_hand_with_rows_that_see_nothing_is_named():
    past = torch.ones(6, 6).tril(-1).bool()
    model = nn.Sequential(Attends(), Weighs(lambda s: by_hand(s.masked_fill(~past, -torch.inf))))
    w = at.watch(model).start()
    model(X)
    with pytest.warns(RuntimeWarning, match=r"nothing was recorded of 1 \(exp"):
        w.stop()


WATCHED = """
import sys
import torch
import attentropy as at
from torch import nn
layer = nn.MultiheadAttention(8, 2, batch_first=True)
with at.watch(layer) as w:
    layer(*[torch.randn(2, 5, 8)] * 3)
assert len(w.heads()) == 2
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""


def test_the_compiler_of_torch_is_not_imported():
    """It takes longer than most of what people watch."""
    told = subprocess.run([sys.executable, "-c", WATCHED], capture_output=True, check=True)
    assert told.stdout.strip() == b"[]"
