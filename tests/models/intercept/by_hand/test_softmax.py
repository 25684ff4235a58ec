"""Attention by hand: masks as people write them, and softmaxes that are something else."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attentropy as at

LENGTHS = torch.tensor([9, 6])
FILLED = (torch.arange(9) < 6)[:, None] & (torch.arange(9) < 6)  # tokens added see nothing
SEEN = torch.ones(9, 9).tril().bool() & (torch.arange(9) < LENGTHS[:, None])[:, None, None]


class Attention(nn.Module):
    """softmax(q k^T / sqrt(d), hidden keys at `lowest`) v, by hand or by torch."""

    num_heads = 4

    def __init__(self, lowest, how, seen=SEEN):
        super().__init__()
        torch.manual_seed(0)
        self.project, self.lowest, self.how = nn.Linear(32, 96), lowest, how
        self.seen = seen

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        mask = torch.zeros(self.seen.shape).masked_fill(~self.seen, self.lowest)
        if self.how == "torch":
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        s = q @ k.mT * 8**-0.5
        if self.how == "added":
            return (s + mask).softmax(-1) @ v
        if self.how == "scaled after":
            return ((q @ k.mT + mask) / 8**0.5).softmax(-1) @ v
        return s.masked_fill(~self.seen, self.lowest).softmax(-1) @ v


@pytest.mark.parametrize("how", ["filled", "added", "scaled after", "torch"])
@pytest.mark.parametrize(
    "lowest", [-torch.inf, torch.finfo(torch.float32).min, -1e30, -1e9, -1e4, -1e2]
)
@torch.no_grad()
def test_hidden_keys_are_not_counted_whatever_number_hides_them(lowest, how):
    if how == "scaled after" and lowest == -1e2:
        lowest = -3e2  # which is -106 in the end
    model, x = Attention(lowest, how), torch.randn(2, 9, 32)
    plain = model(x)
    with at.watch(model, sample=None) as w:
        torch.testing.assert_close(model(x), plain)
    q, k, _ = model.project(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
    p = (q @ k.mT * 8**-0.5).masked_fill(~SEEN, -torch.inf).softmax(-1)
    kept = SEEN.sum(-1) >= 2
    entropy = torch.special.entr(p).sum(-1) / SEEN.sum(-1).log()
    want = entropy.masked_fill(~kept, 0.0).sum((0, 2)) / kept.sum()
    assert {row.rows for row in w.heads()} == {int(kept.sum())}
    for row, value in zip(w.heads(), want.tolist(), strict=True):
        assert row.normalized_entropy == pytest.approx(value, abs=1e-5)
        assert 0 < row.spread < 5


@pytest.mark.parametrize("how", ["added", "torch"])
@pytest.mark.parametrize("lowest", [torch.finfo(torch.float32).min, -1e10, -1e4, -1e2])
@torch.no_grad()
def test_a_row_that_sees_nothing_does_not_count_whatever_number_hides_its_keys(lowest, how):
    model, x = Attention(lowest, how, FILLED), torch.randn(2, 9, 32)
    plain = model(x)
    with at.watch(model, sample=None) as w:
        torch.testing.assert_close(model(x), plain)
    # a softmax does not tell -100 for all keys of a row from low scores
    told = how == "torch" or lowest < -1e2
    assert {row.rows for row in w.heads()} == {2 * (6 if told else 9)}


@pytest.mark.parametrize(("slope", "visible"), [(17.0, 6.0), (31.0, 6 - 12 / 6)])
def test_a_bias_hides_keys_90_below_the_largest_of_a_row(slope, visible):
    class Biased(nn.Module):
        def forward(self, q):
            away = (torch.arange(6)[:, None] - torch.arange(6)).abs()
            return F.scaled_dot_product_attention(q, q, q, attn_mask=-slope * away)

    model, q = Biased(), torch.randn(1, 2, 6, 8)
    with at.watch(model) as w:
        model(q)
    assert w.heads()[0].visible == pytest.approx(visible)


class Shaped(nn.Module):
    """Attention by hand, whose softmax has some shape; `turn` makes it of [B,H,Q,K]."""

    num_heads = 2

    def __init__(self, turn, dim=-1):
        super().__init__()
        self.turn, self.dim = turn, dim

    def forward(self, s, v):
        p = self.turn(s).softmax(self.dim).mul(2)
        return ((p.mT if self.dim == -2 else p) @ v).sum()


class SomeName(Shaped):
    """A name that does not tell."""


S = torch.randn(3, 2, 4, 12) * 3
TURNS = {
    "heads after queries": (lambda s: s.transpose(1, 2), -1, torch.randn(3, 4, 12, 5)),
    "blocks": (lambda s: s.unflatten(2, (2, 2)), -1, torch.randn(3, 2, 2, 12, 5)),
    "side by side": (lambda s: s.flatten(0, 1), -1, torch.randn(6, 12, 5)),
    "keys before queries": (lambda s: s.mT, -2, torch.randn(3, 2, 12, 5)),
}


@pytest.mark.parametrize("verify", ["first", "never"])
@pytest.mark.parametrize("kind", [Shaped, SomeName])
@pytest.mark.parametrize("name", TURNS)
@torch.no_grad()
def test_softmaxes_of_any_shape_are_read(name, kind, verify):
    turn, dim, v = TURNS[name]
    model = nn.Sequential(nn.ModuleDict({"attention": kind(turn, dim)}))
    run = lambda: model[0]["attention"](S, v)  # noqa: E731
    model.forward = lambda: run()  # noqa: PLW0108
    with at.watch(model, verify=verify) as w:
        model()
        model()
    want = torch.special.entr(S.double().softmax(-1)).sum(-1).mean((0, 2))
    got = torch.tensor([row.entropy for row in w.heads()], dtype=torch.float64)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
    assert {row.rows for row in w.heads()} == {24}


class Gate(nn.Module):
    """Softmaxes that sum no values: a heat map and a mixture."""

    def forward(self, x):
        heat = torch.randn(2, 3, 5, 5).softmax(-1)
        return x * heat.amax() + F.scaled_dot_product_attention(*[x[:, None]] * 3)[:, 0]


@torch.no_grad()
def test_softmaxes_that_are_no_attention_are_left_out():
    model, x = nn.Sequential(Gate()), torch.randn(2, 5, 8)
    for _ in range(2):  # learned once
        with at.watch(model) as w:
            model(x)
            model(x)
        assert {(row.heads, row.rows) for row in w.heads()} == {(1, 20)}


@pytest.mark.parametrize("positional", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padded_queries_of_xlnet_which_see_themselves_do_not_count(side, positional):
    transformers = pytest.importorskip("transformers")
    config = transformers.XLNetConfig(vocab_size=64, d_model=32, n_layer=2, n_head=4, d_inner=32)
    torch.manual_seed(0)
    model, ids = transformers.XLNetModel(config).eval(), torch.randint(3, 60, (2, 9))
    mask, pad = torch.ones(2, 9), slice(None, 4) if side == "left" else slice(-4, None)
    mask[1, pad] = 0
    with at.watch(model, sample=None) as w:
        model(ids, mask) if positional else model(ids, attention_mask=mask)
    whole, short = ids[:1], ids[1:, 4:] if side == "left" else ids[1:, :-4]
    with at.watch(model, sample=None) as v:
        model(whole)
        model(short)  # the same rows, without padding
    for padded, plain in zip(w.heads(), v.heads(), strict=True):
        assert padded.rows == plain.rows == 14
        assert padded.entropy == pytest.approx(plain.entropy, rel=1e-5)
        assert padded.max_logit == pytest.approx(plain.max_logit, rel=1e-5)


@torch.no_grad()
def test_a_mask_of_the_pass_before_is_forgotten():
    transformers = pytest.importorskip("transformers")
    config = transformers.XLNetConfig(vocab_size=64, d_model=32, n_layer=1, n_head=4, d_inner=32)
    model, ids = transformers.XLNetModel(config).eval(), torch.randint(3, 60, (1, 9))
    mask = torch.ones(1, 9)
    mask[0, :4] = 0
    with at.watch(model) as w:
        model(ids, attention_mask=mask)
        model(ids)
    assert {row.rows for row in w.heads()} == {5 + 9}


class Sunk(nn.Module):
    """Attention by hand whose softmax has a learned sink, in front of the keys or behind them."""

    num_heads = 2

    def __init__(self, front):
        super().__init__()
        self.front, self.sinks = front, nn.Parameter(torch.tensor([0.5, -1.0]))

    def logits(self, x):
        s = x @ x.mT
        return s + torch.full(s.shape[-2:], -torch.inf).triu(1)

    def forward(self, x):
        s, sink = self.logits(x), self.sinks.view(1, 2, 1, 1)
        sink = sink.expand(*s.shape[:-1], 1)
        s = torch.cat([sink, s] if self.front else [s, sink], -1)
        p = (s - s.amax(-1, keepdim=True)).softmax(-1)
        return (p[..., 1:] if self.front else p[..., :-1]) @ x


@pytest.mark.parametrize("front", [True, False])
@torch.no_grad()
def test_a_sink_beside_the_keys_is_an_outcome_and_no_key(front):
    model, x = Sunk(front), torch.randn(3, 2, 6, 4)
    with at.watch(model, sample=None) as w:
        model(x)
    first = w.heads()
    with at.watch(model, sample=None) as w:
        model(x)
        model(x)
    sink = model.sinks.double().view(1, 2, 1, 1).expand(3, 2, 6, 1)
    p = torch.cat([model.logits(x).double(), sink], -1).softmax(-1)
    entropy = torch.special.entr(p).sum(-1)[..., 1:].mean((0, 2))
    for rows, passes in ((first, 1), (w.heads(), 2)):
        assert [(r.kind, r.phase, r.length, r.rows) for r in rows] == [
            ("self", "forward", 6, 15 * passes)
        ] * 2
        assert [r.entropy for r in rows] == pytest.approx(entropy.tolist(), abs=1e-5)
        assert all(r.causal for r in rows)


@torch.no_grad()
def test_keys_that_are_joined_to_others_and_meet_values_are_keys():
    class Joined(nn.Module):
        def forward(self, x):
            s = torch.cat([x @ x.mT, x @ x[..., :1, :].mT], -1)
            return s.softmax(-1) @ torch.cat([x, x[..., :1, :]], -2)

    model = Joined()
    with at.watch(model) as w:
        model(torch.randn(3, 2, 6, 4))
    assert {(r.length, r.rows) for r in w.heads()} == {(7, 18)}
