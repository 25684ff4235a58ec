"""Padding and cross-attention, told by what modules are called with."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attentropy as at
from attentropy.core.masks import Extent
from attentropy.core.visibility import Visibility
from attentropy.models.intercept.arguments import names_of
from tests.models.zoo import build, inputs


class Attention(nn.Module):
    """One head over [B,N,8]; keys come from `other` where it is given."""

    def forward(self, x, encoder_hidden_states=None, mask=None):
        k = (x if encoder_hidden_states is None else encoder_hidden_states)[:, None]
        return F.scaled_dot_product_attention(x[:, None], k, k, attn_mask=mask)[:, 0]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = Attention()

    def forward(self, x, attention_mask=None, table=None):
        return self.layer(x, mask=table)


X = torch.randn(2, 6, 8)
TABLES = {
    "own key hidden": ~torch.eye(6, dtype=torch.bool),
    "strictly causal": torch.ones(6, 6).tril(-1).bool(),
    "random": torch.rand(6, 6, generator=torch.Generator().manual_seed(0)) > 0.4,
}


@pytest.mark.parametrize("name", TABLES)
@torch.no_grad()
def test_rows_that_do_not_see_their_own_key_count(name):
    model, table = Model(), TABLES[name]
    with at.watch(model) as w:
        model(X, table=table)
    s = (X.double() @ X.double().mT / 8**0.5).masked_fill(~table, -torch.inf)
    kept = table.sum(-1) >= 2
    entropy = torch.special.entr(s.softmax(-1)).sum(-1)[:, kept]
    (row,) = w.heads()
    assert row.rows == 2 * int(kept.sum())
    assert row.entropy == pytest.approx(float(entropy.mean()), abs=1e-5)


@pytest.mark.parametrize("how", ["keyword", "position"])
@torch.no_grad()
def test_padding_is_what_the_caller_says(how):
    model, real = Model(), torch.ones(2, 6)
    real[1, 4:] = 0
    with at.watch(model) as w:
        model(X, attention_mask=real) if how == "keyword" else model(X, real)
    assert {row.rows for row in w.heads()} == {10}
    with at.watch(model) as w:
        model(X, attention_mask=real[:, :5])  # speaks of other tokens
    assert {row.rows for row in w.heads()} == {12}


@torch.no_grad()
def test_a_mask_that_a_layer_adds_to_logits_tells_of_no_padding():
    model, added = Model(), torch.zeros(2, 6)
    added[1, 4:] = torch.finfo(torch.float32).min
    with at.watch(model) as w:
        model(X, attention_mask=added, table=added[:, None, None])
    assert {row.rows for row in w.heads()} == {12}


@pytest.mark.parametrize("training", [False, True])
def test_padding_of_a_torch_encoder(training):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 1).train(training)
    pad = torch.zeros(2, 6, dtype=torch.bool)
    pad[1, 4:] = True
    with at.watch(model) as w:
        model(X, src_key_padding_mask=pad)
    assert {(row.rows, row.kind) for row in w.heads()} == {(10, "self")}


def test_torch_decoders_attend_to_themselves_and_across():
    model = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    pad = torch.zeros(2, 6, dtype=torch.bool)
    pad[1, 4:] = True
    with at.watch(model) as w:
        model(X, torch.randn(2, 6, 8), tgt_key_padding_mask=pad)
    assert {(r.layer, r.kind, r.rows) for r in w.heads()} == {
        ("self_attn", "self", 10),
        ("multihead_attn", "cross", 10),
    }


@pytest.mark.parametrize("keys", [4, 6, 9])
@torch.no_grad()
def test_keys_of_another_input_are_cross(keys):
    model, memory = nn.Sequential(Attention()), torch.randn(2, keys, 8)
    model.forward = lambda x: model[0](x, encoder_hidden_states=memory)
    with at.watch(model) as w:
        model(X)
    assert {(row.kind, row.phase, row.rows) for row in w.heads()} == {("cross", "forward", 12)}


@torch.no_grad()
def test_one_module_may_do_both():
    model = nn.Sequential(Attention())
    model.forward = lambda x: model[0](model[0](x), encoder_hidden_states=torch.randn(2, 9, 8))
    with at.watch(model) as w:
        model(X)
    assert [(row.call, row.kind, row.length) for row in w.heads()] == [
        (0, "self", 6),
        (1, "cross", 9),
    ]


@torch.no_grad()
def test_a_decoder_without_a_mask_of_its_own_has_no_padding():
    pytest.importorskip("transformers")
    model, batch = build("bart"), inputs("bart")
    with at.watch(model) as w:
        model(**batch)
    rows = {(row.layer.split(".")[1], row.kind): row.rows for row in w.heads()}
    queries = batch["decoder_input_ids"].numel()
    assert rows["encoder", "self"] == int(batch["attention_mask"].sum())
    assert rows["decoder", "self"] == queries - len(batch["decoder_input_ids"])
    assert rows["decoder", "cross"] == queries


def test_names_of_arguments():
    assert names_of(Attention) == {"x": 0, "encoder_hidden_states": 1, "mask": 2}
    assert list(names_of(nn.MultiheadAttention))[:3] == ["query", "key", "value"]


class Windows(nn.Module):
    """Attention within parts of 4 tokens, side by side in the batch."""

    def __init__(self):
        super().__init__()
        self.layer = Attention()

    def forward(self, x):
        return self.layer(x.reshape(-1, 4, 8)).reshape(x.shape)


@torch.no_grad()
def test_attention_within_parts_of_a_sequence_is_a_window():
    model = nn.Sequential(Windows(), Attention())
    with at.watch(model) as w:
        model(torch.randn(2, 12, 8))
    assert [(row.layer, row.kind) for row in w.heads()] == [("0.layer", "window"), ("1", "self")]


@pytest.mark.parametrize(
    ("mask", "kind"),
    [
        (at.causal & at.lookback(3), "window"),
        (at.lookback(2) & at.lookahead(2), "window"),
        (at.causal, "self"),
        (at.documents([0] * 3 + [1] * 3), "self"),
        (at.documents([0] * 5 + [1]), "self"),
        (at.causal & at.lookback(6), "self"),
        (at.causal & at.lookback(3) & at.padding([6, 4]), "window"),
    ],
    ids=str,
)
@pytest.mark.parametrize("how", ["bool", "float", "attend"])
@torch.no_grad()
def test_keys_that_leave_the_sight_of_later_queries_are_a_window(mask, kind, how):
    seen = Visibility.of_mask(mask, Extent(2, 1, 6, 6, X.device)).dense()
    table = seen if how == "bool" else torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)

    class Layer(nn.Module):
        def forward(self, x):
            return at.attend(x[:, None], x[:, None], x[:, None], mask=mask).out[:, 0]

    model = Layer() if how == "attend" else Model()
    with at.watch(model) as w:
        model(X) if how == "attend" else model(X, table=table)
    assert {row.kind for row in w.heads()} == {kind}


@torch.no_grad()
def test_queries_and_keys_of_other_lengths_are_cross():
    class Looks(nn.Module):
        def forward(self, query, key):
            return F.scaled_dot_product_attention(query, key, key)

    model = Looks()
    with at.watch(model) as w:
        model(query=torch.randn(2, 1, 3, 8), key=torch.randn(2, 1, 7, 8))
    assert {(row.kind, row.phase) for row in w.heads()} == {("cross", "forward")}


class Cached(nn.Module):
    """Attention over all tokens so far, in a layer that is given the last."""

    def __init__(self):
        super().__init__()
        self.past = torch.zeros(2, 0, 8)

    def forward(self, x):
        self.past = torch.cat([self.past, x], 1)
        return F.scaled_dot_product_attention(x[:, None], self.past[:, None], self.past[:, None])


@torch.no_grad()
def test_the_second_token_continues_a_cache():
    model = Cached()
    with at.watch(model) as w:
        for token in X[:, :3].split(1, 1):
            model(token)
    assert {(row.kind, row.phase, row.rows) for row in w.heads()} == {
        ("self", "forward", 0),
        ("self", "step", 4),
    }
