"""Attention by hand: masks as people write them, and softmaxes that are something else."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attentropy as at
from attentropy.models.watch import NothingRecorded

LENGTHS = torch.tensor([9, 6])
SEEN = torch.ones(9, 9).tril().bool() & (torch.arange(9) < LENGTHS[:, None])[:, None, None]


class Attention(nn.Module):
    """softmax(q k^T / sqrt(d), hidden keys at `lowest`) v, by hand or by torch."""

    num_heads = 4

    def __init__(self, lowest, how):
        super().__init__()
        torch.manual_seed(0)
        self.project, self.lowest, self.how = nn.Linear(32, 96), lowest, how

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        mask = torch.zeros(SEEN.shape).masked_fill(~SEEN, self.lowest)
        if self.how == "torch":
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        s = q @ k.mT * 8**-0.5
        if self.how == "added":
            return (s + mask).softmax(-1) @ v
        if self.how == "scaled after":
            return ((q @ k.mT + mask) / 8**0.5).softmax(-1) @ v
        return s.masked_fill(~SEEN, self.lowest).softmax(-1) @ v


@pytest.mark.parametrize("how", ["filled", "added", "scaled after", "torch"])
@pytest.mark.parametrize("lowest", [-torch.inf, torch.finfo(torch.float32).min, -1e30, -1e9, -1e4])
@torch.no_grad()
def test_hidden_keys_are_not_counted_whatever_number_hides_them(lowest, how):
    if how == "scaled after" and lowest == -1e4:
        lowest = -2e4  # which is -7071 in the end
    model, x = Attention(lowest, how), torch.randn(2, 9, 32)
    plain = model(x)
    with at.watch(model, sample=None) as w:
        torch.testing.assert_close(model(x), plain)
    q, k, _ = model.project(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
    p = (q @ k.mT * 8**-0.5).masked_fill(~SEEN, -torch.inf).softmax(-1)
    kept = (SEEN.sum(-1) >= 2) & SEEN.diagonal(dim1=-2, dim2=-1)
    entropy = torch.special.entr(p).sum(-1) / SEEN.sum(-1).log()
    want = entropy.masked_fill(~kept, 0.0).sum((0, 2)) / kept.sum()
    assert {row.rows for row in w.heads()} == {int(kept.sum())}
    for row, value in zip(w.heads(), want.tolist(), strict=True):
        assert row.normalized_entropy == pytest.approx(value, abs=1e-5)
        assert 0 < row.spread < 5


def test_a_steep_bias_hides_nothing():
    class Biased(nn.Module):
        def forward(self, q):
            away = (torch.arange(6)[:, None] - torch.arange(6)).abs()
            return F.scaled_dot_product_attention(q, q, q, attn_mask=-3000.0 * away)

    model, q = Biased(), torch.randn(1, 2, 6, 8)
    with at.watch(model) as w:
        model(q)
    # but for the two pairs that are farthest apart, all keys of all queries
    assert w.heads()[0].visible == pytest.approx(6 - 2 / 6)


class Windows(nn.Module):
    """A local attention, by hand: its softmax has one dimension more."""

    num_heads = 2

    def forward(self, x):
        return torch.randn(1, 3, 2, 4, 12).softmax(-1).sum() * x


class Turned(nn.Module):
    """Heads after the queries."""

    num_heads = 2

    def forward(self, x):
        return torch.randn(1, 5, 2, 5).softmax(-1).sum() * x


class Model(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.attention = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.attention:
            x = layer(x)
        return x


class AttentionOf(Windows):
    pass


class TurnedAttention(Turned):
    pass


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(AttentionOf, r"\[1, 3, 2, 4, 12\]"), (TurnedAttention, r"\[1, 5, 2, 5\]")],
)
def test_softmaxes_of_other_shapes_are_told_and_not_guessed_at(layer, shape):
    model = Model(layer())
    why = rf"nothing was recorded of attention.0 \(a softmax of shape {shape}"
    with pytest.raises(NothingRecorded, match=why), at.watch(model):
        model(torch.ones(1))


def test_parts_of_transformers_models_without_the_interface_are_told():
    transformers = pytest.importorskip("transformers")
    config = transformers.LongT5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4, local_radius=3
    )
    torch.manual_seed(0)
    model, ids = transformers.LongT5Model(config).eval(), torch.randint(3, 60, (1, 9))
    why = "nothing was recorded of encoder.block.0.layer.0.LocalSelfAttention"
    with pytest.warns(RuntimeWarning, match=why), at.watch(model) as w:
        model(input_ids=ids, decoder_input_ids=ids)
    assert {row.layer.partition(".")[0] for row in w.heads()} == {"decoder"}


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
