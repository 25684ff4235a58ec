"""A call that comes again is served by the kernel alone, with the numbers of the long way."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attentropy as at
from attentropy.core.resolve import Options, resolve
from attentropy.kernels.fused import library
from attentropy.models.intercept import repeated, verify

pytestmark = pytest.mark.skipif(library.serving is None, reason="no compiled kernel")


class Attention(nn.Module):
    def __init__(self, causal=True):
        super().__init__()
        self.qkv, self.out, self.causal = nn.Linear(32, 96), nn.Linear(32, 32), causal

    def forward(self, x, attention_mask=None):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        mask = None if attention_mask is None else attention_mask[:, None, None] != 0
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=self.causal and mask is None
        )
        return self.out(mixed.transpose(1, 2).flatten(2))


@pytest.fixture
def short(monkeypatch):
    """Names of the modules whose calls took the short way."""
    found, answer = [], repeated.answer

    def counted(owner, *args):
        out = answer(owner, *args)
        if out is not None:
            found.append(owner.name)
        return out

    monkeypatch.setattr(repeated, "answer", counted)
    return found


def same(rows, others, *, tolerance=2e-5):
    assert [(r.layer, r.head, r.rows, r.length, r.causal) for r in rows] == [
        (r.layer, r.head, r.rows, r.length, r.causal) for r in others
    ]
    for row, other in zip(rows, others, strict=True):
        for name in at.core.statistics.NAMES:
            a, b = row[name], other[name]
            assert a == pytest.approx(b, rel=tolerance, abs=tolerance, nan_ok=True), name


@torch.no_grad()
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("padded", [False, True])
def test_numbers_and_outputs_are_those_of_the_long_way(short, causal, padded):
    torch.manual_seed(0)
    model, texts = Attention(causal).eval(), torch.randn(5, 2, 11, 32)
    mask = (torch.arange(11) < torch.tensor([11, 6])[:, None]).long() if padded else None
    with at.watch(model, verify="always") as long:
        expected = [model(x, mask) for x in texts]
    assert not short
    with at.watch(model) as quick:
        found = [model(x, mask) for x in texts]
    assert short == [""] * 3  # known from the second call on
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    same(quick.heads(), long.heads())
    assert [row.status for row in quick.coverage()] == ["verified"]
    with at.watch(model) as once:  # what is known of a module outlives a watch
        model(texts[0], mask)
    assert len(short) == 4
    assert once.heads()[0].rows == quick.heads()[0].rows / 5


@torch.no_grad()
def test_padding_may_change_from_call_to_call(short):
    torch.manual_seed(0)
    model, x = Attention().eval(), torch.randn(2, 9, 32)
    masks = [
        (torch.arange(9) < torch.tensor([a, b])[:, None]).long()
        for a, b in ((9, 4), (5, 9), (3, 3))
    ]
    with at.watch(model, verify="always") as long:
        for mask in masks:
            model(x, mask)
    with at.watch(model) as quick:
        for _ in range(4):
            model(x, masks[0])
        quick.clear()
        for mask in masks:
            model(x, mask)
    assert len(short) >= 4
    same(quick.heads(), long.heads())


@torch.no_grad()
def test_a_mask_without_padding_is_worked_out_once(short, monkeypatch):
    torch.manual_seed(0)
    model, x, made = Attention().eval(), torch.randn(2, 9, 32), []
    plain = repeated.Summing
    monkeypatch.setattr(repeated, "Summing", lambda *given: made.append(1) or plain(*given))
    with at.watch(model) as w:
        for _ in range(4):
            model(x)
        w.clear()
        model(x)
    with at.watch(model) as padless:
        for _ in range(4):
            model(x, torch.ones(2, 9))
        padless.clear()
        model(x, torch.ones(2, 9))
    assert len(short) >= 4
    assert len(made) == 2  # causal, and everything
    assert padless.heads()[0].rows == 2 * 9
    assert w.heads()[0].rows == 2 * 8  # the first query has no choice


@torch.no_grad()
def test_lazily_negated_tensors_take_the_long_way(short):
    class Negated(Attention):
        lazy = False

        def forward(self, x):
            q = self.qkv(x).unflatten(-1, (3, 4, 8))[:, :, 0].transpose(1, 2).contiguous()
            k = torch._neg_view(-q) if self.lazy else q.clone()
            assert k.stride() == q.stride()
            return F.scaled_dot_product_attention(q, k, k)

    model, x = Negated().eval(), torch.randn(1, 9, 32)
    with at.watch(model):
        found = [model(x) for _ in range(4)][-1]
        assert len(short) == 1
        model.lazy = True
        torch.testing.assert_close(model(x), found)
    assert len(short) == 1


def test_a_call_that_anything_follows_takes_the_long_way(short):
    model, x = Attention(), torch.randn(1, 9, 32)
    with at.watch(model):
        with torch.no_grad():
            for _ in range(4):
                model(x)
        assert len(short) == 1
        model(x).sum().backward()  # gradients
        assert model.qkv.weight.grad is not None
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            model(x)
        with torch.no_grad():
            model(x.repeat(1, 2, 1))  # another length
        assert len(short) == 1
        with torch.no_grad():
            model(x)
    assert len(short) == 2


@torch.no_grad()
def test_a_steered_module_takes_the_long_way(short):
    model, x = Attention().eval(), torch.randn(1, 9, 32)
    with at.watch(model) as w:
        plain = [model(x) for _ in range(4)][-1]
        handle = at.steer(model, temperature=2.0)
        assert not torch.allclose(model(x), plain)
        handle.undo()
        torch.testing.assert_close(model(x), plain)
    assert len(short) == 2
    assert w.heads()[0].rows == 6 * 8


@torch.no_grad()
def test_rows_that_are_kept_and_unrecorded_passes_take_the_long_way(short):
    model, x = Attention().eval(), torch.randn(1, 9, 32)
    with at.watch(model, keep="rows") as w:
        for _ in range(4):
            model(x)
    assert not short
    assert w.profiles()
    with at.watch(model, every=2) as w:
        for _ in range(8):
            model(x)
    assert w.heads()[0].rows == 4 * 8


@torch.no_grad()
def test_a_verdict_against_attend_ends_the_short_way(short):
    model, x = Attention().eval(), torch.randn(1, 9, 32)
    with at.watch(model):
        for _ in range(4):
            model(x)
        assert len(short) == 1
        verify.remember(model, "another way", "it differs")
        model(x)
        assert len(short) == 1
    verify.forget(model)
    assert not verify.repeated[model]


def test_calls_of_which_there_is_no_plan():
    q = torch.randn(1, 2, 8, 16)
    assert repeated._plan_of(resolve(q, q, q, Options())) is not None
    low = q.bfloat16()
    assert repeated._plan_of(resolve(low, low, low, Options())) is None
    for options in ({"dropout": 0.5}, {"sink": torch.zeros(2)}, {"bias": torch.zeros(1, 1, 8, 8)}):
        assert repeated._plan_of(resolve(q, q, q, Options(**options))) is None


@torch.no_grad()
def test_only_so_many_kinds_are_remembered():
    model = Attention().eval()
    with at.watch(model):
        for n in range(2, repeated.KINDS + 12):
            model(torch.randn(1, n, 32))
    assert len(verify.repeated[model]) <= repeated.KINDS


@torch.no_grad()
def test_rows_of_a_pass_that_takes_turns_are_its_own(short):
    model, x = Attention().eval(), torch.randn(1, 7, 32)
    with at.watch(model) as w:
        for _ in range(4):
            model(x)
        before, rows = len(short), w.heads()[0].rows
        notes = w.recorder.switch(None)
        for _ in range(2):
            model(x)
        w.recorder.switch(notes)
        assert len(short) == before + 2
        assert w.heads()[0].rows == rows
