"""Watching compares the model's own attention with ours before it trusts it."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attentropy as at
from attentropy.core.errors import ArgumentError
from attentropy.models.intercept import sdpa, verify


class Attends(nn.Module):
    """Self-attention whose heads are the halves of its input."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.num_heads, self.dropout = 2, dropout

    def forward(self, x):
        q = x.unflatten(-1, (2, -1)).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, q, q, dropout_p=self.dropout)
        return out.transpose(1, 2).flatten(2)


class Layer(nn.Module):
    """Calls attend(), which needs no reading."""

    def forward(self, x):
        return at.attend(x[:, None], x[:, None], x[:, None]).out[:, 0]


@pytest.fixture
def wrong(monkeypatch):
    """Our reading of a call doubles its scale."""
    read = sdpa.Options
    monkeypatch.setattr(sdpa, "Options", lambda **o: read(**{**o, "scale": 2 * o["scale"]}))


X = torch.randn(2, 6, 8) * 2


@torch.no_grad()
def test_the_first_call_is_the_models_own_to_the_bit():
    model = nn.Sequential(Attends())
    plain = model(X)
    with at.watch(model):
        assert torch.equal(model(X), plain)
        torch.testing.assert_close(model(X), plain)


@pytest.mark.parametrize("mode", ["first", "always"])
@torch.no_grad()
def test_a_wrong_reading_never_reaches_the_output(wrong, mode):
    model = nn.Sequential(Attends(), nn.Linear(8, 8), Layer())
    plain = model(X)
    reason = r"nothing was recorded of 0 \(its output differs from that of attend\(\) by"
    w = at.watch(model, verify=mode).start()
    for _ in range(3):
        assert torch.equal(model(X), plain)
    with pytest.warns(RuntimeWarning, match=reason):
        w.stop()
    assert {row.layer for row in w.heads()} == {"2"}


@torch.no_grad()
def test_never_trusts(wrong):
    model = nn.Sequential(Attends())
    plain = model(X)
    with at.watch(model, verify="never"):
        assert not torch.allclose(model(X), plain)


@torch.no_grad()
def test_a_wrong_reading_is_not_steered(wrong):
    model = nn.Sequential(Attends(), Layer())
    plain = model(X)
    handle = at.steer(model, temperature=1.0)
    with pytest.warns(RuntimeWarning, match="left alone 0"):
        assert torch.equal(model(X), plain)
    handle.undo()
    assert torch.equal(model(X), plain)


@torch.no_grad()
def test_what_we_refuse_does_not_end_a_forward_pass(monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("no such mask")

    model = nn.Sequential(Attends(), Layer())
    plain = model(X)
    reason = r"0 \(attend\(\) does not take its call: no such mask"
    w = at.watch(model).start()
    model(X)
    monkeypatch.setattr(sdpa, "everything", refuse)
    assert torch.equal(model(X), plain)
    with pytest.warns(RuntimeWarning, match=reason):
        w.stop()


@torch.no_grad()
def test_a_model_of_doubles_that_rounds_to_single_precision_keeps_its_output(monkeypatch):
    plain = F.scaled_dot_product_attention

    def rounded(q, k, v, *args, **options):
        return plain(q.float(), k.float(), v.float(), *args, **options).double()

    monkeypatch.setattr(F, "scaled_dot_product_attention", rounded)
    model, x = nn.Sequential(Attends()), X.double()
    wanted = model(x)
    with at.watch(model) as w:
        for _ in range(2):
            assert torch.equal(model(x), wanted)
    assert [(row.status, row.why) for row in w.coverage()] == [("beside", verify.ROUNDED)]
    q = x.unflatten(-1, (2, -1)).transpose(1, 2)
    want = torch.special.entr((q @ q.mT / 2).softmax(-1)).sum(-1).mean((0, 2))
    got = torch.tensor([row.entropy for row in w.heads()], dtype=torch.float64)
    torch.testing.assert_close(got, want, atol=1e-9, rtol=0)


def test_dropout_draws_as_without_us():
    model = nn.Sequential(Attends(0.3), nn.Dropout(0.5))
    outputs = []
    for watched in (False, True):
        torch.manual_seed(3)
        if watched:
            with at.watch(model) as w:
                outputs.append([model(X) for _ in range(3)])
        else:
            outputs.append([model(X) for _ in range(3)])
    for plain, seen in zip(*outputs, strict=True):
        assert torch.equal(plain, seen)
    q = X.unflatten(-1, (2, -1)).transpose(1, 2).double()
    want = torch.special.entr((q @ q.mT / 2).softmax(-1)).sum(-1).mean((0, 2))
    got = torch.tensor([row.entropy for row in w.heads()], dtype=torch.float64)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)


def test_gradients_of_a_first_call_are_those_of_the_model():
    model, grads = nn.Sequential(nn.Linear(8, 8), Attends()), []
    for watched in (False, True):
        model.zero_grad()
        if watched:
            with at.watch(model):
                model(X).square().sum().backward()
        else:
            model(X).square().sum().backward()
        grads.append(model[0].weight.grad.clone())
    assert torch.equal(*grads)


def test_verdicts_are_remembered_as_long_as_the_module_lives():
    model = nn.Sequential(Attends())
    with torch.no_grad(), at.watch(model):
        model(X)
    assert set(verify._verdicts[model[0]].values()) == {""}
    verify.remember(model[0], "way", "differs")
    verify.remember(model[0], "way", "")
    assert verify.verdict(model[0], "way") == "differs"
    verify.forget(model)
    assert verify.verdict(model[0], "way") is None
    verify.remember(model[0], "way", "differs")
    gone = weakref.ref(model[0])
    del model
    gc.collect()
    assert gone() is None


def test_differences_in_words():
    x = torch.randn(3, 4)
    assert verify.difference(x, x + 1e-6) == ""
    assert verify.difference(x[:0], x[:0]) == ""
    assert "by 0.5 of its size" in verify.difference(torch.ones(2), torch.tensor([1.0, 1.5]))
    assert "shape [3, 4]" in verify.difference(x, x[:2])
    doubles = x.double()
    assert verify.difference(doubles, doubles * (1 + 1e-12)) == ""
    assert verify.difference(doubles, doubles * (1 + 1e-7)) == verify.ROUNDED
    assert "differs" in verify.difference(doubles, doubles * (1 + 1e-5))
    assert "torch.bfloat16" in verify.difference(x.bfloat16(), x)
    nan = torch.tensor([1.0, torch.nan])
    assert verify.difference(nan, nan) == ""
    assert "finite elsewhere" in verify.difference(nan, torch.ones(2))


def test_calls_are_told_apart():
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8)
    ways = {verify.sizes(q, k, k), verify.sizes(q[:, :, :1], k, k), verify.sizes(q, q, q)}
    ways |= {verify.sizes(q.double(), k.double(), k.double()), verify.sizes(q[0], k[0], k[0])}
    assert len(ways) == 5
    forms = {
        verify.form(x) for x in (None, torch.ones(6, 6), torch.ones(1, 6), torch.ones(6, 6) > 0)
    }
    assert len(forms) == 4


def test_unknown_modes_are_refused():
    with pytest.raises(ArgumentError, match='verify must be "first", "always" or "never"'):
        at.watch(nn.Sequential(Attends()), verify="last")
