import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, T5Config, T5ForConditionalGeneration

from attentropy.core.errors import ArgumentError
from attentropy.scans.texts.sides import Side
from attentropy.scans.texts.view import choose, text_view
from tests.scans.small_llama import llama

IDS = torch.randint(97, (23,), generator=torch.Generator().manual_seed(5))


def test_a_decoder():
    model = llama()
    view = text_view(model, IDS, most_heads=3, label=lambda token: f"<{token}>")
    assert view.labels[0] == f"<{IDS[0]}>"
    assert [row.place for row in view.layers] == [f"model.layers.{i}.self_attn" for i in range(2)]
    assert len(view.heads) == 3
    assert set(view.looks) <= {0, 1}
    assert view.looks[view.heads[0][0]].weights.shape[1:] == (23, 16)
    with torch.no_grad():
        logits = model.double()(IDS[None]).logits[0, :-1]
    expected = -logits.log_softmax(-1).gather(-1, IDS[1:, None])[:, 0]
    torch.testing.assert_close(view.surprise.double(), expected, atol=1e-5, rtol=1e-5)


def test_heads_and_length_are_chosen():
    view = text_view(llama(), IDS, heads=[(1, 5), (0, 2), (1, 5)], length=10)
    assert view.heads == [(1, 5), (0, 2)]
    assert (len(view.labels), view.left) == (10, 13)
    assert view.looks[1].heads == (5,)
    assert view.looks[1].weights.shape == (1, 10, 10)


@pytest.mark.parametrize(
    ("heads", "message"),
    [([(2, 0)], "of a model of 2 layers, got 2.0"), ([(0, 6)], "of a layer of 6 heads, got 0.6")],
)
def test_heads_that_are_not_there_are_refused(heads, message):
    with pytest.raises(ArgumentError, match=message):
        text_view(llama(), IDS, heads=heads)


def test_one_token_is_no_text():
    with pytest.raises(ArgumentError, match="length must be 2 tokens or more, got 1"):
        text_view(llama(), IDS, length=1)


def test_an_encoder_has_no_surprise():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    model = BertModel(BertConfig(vocab_size=97, num_hidden_layers=2, **sizes)).eval()
    view = text_view(model, IDS)
    assert view.surprise is None
    assert len(view.heads) == 4
    assert view.looks[0].keys[0, 0].max() > 0  # the first token sees those after it


def test_encoder_and_decoder_with_cross_attention():
    torch.manual_seed(0)
    config = T5Config(vocab_size=97, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    view = text_view(T5ForConditionalGeneration(config).eval(), IDS)
    assert [row.kind for row in view.layers] == ["self", "self", "cross"]
    assert view.rows[2]["distance"].isnan().all()
    assert view.sides == [Side("source", 0, 23), Side("target", 23, 23)]
    assert view.looks[2].keys[0, 23].max() > 0
    assert view.looks[2].keys[0, 0].max() == -1  # the encoder asks nothing there


def test_sharp_heads_beyond_the_first_key_are_chosen_of_every_layer():
    def layer(*sharp):
        top = torch.tensor(sharp)[:, None].expand(-1, 4)
        return {"top_probability": top, "sink_mass": torch.zeros_like(top)}

    rows = [layer(0.1, 0.5, 0.4), layer(0.9, 0.2)]
    rows[1]["sink_mass"] = torch.tensor([[0.9], [0.0]]).expand(-1, 4)
    assert choose(rows, 3) == [(0, 1), (1, 1), (0, 2)]


def t5():
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = T5Config(vocab_size=97, decoder_start_token_id=0, initializer_factor=3.0, **sizes)
    return T5ForConditionalGeneration(config).eval()


def test_two_texts_against_eager_weights():
    model, target = t5(), [0, 5, 6, 7, 8]
    view = text_view(model, IDS, target=target)
    assert view.sides == [Side("source", 0, 23), Side("target", 23, 5)]
    assert view.ids.tolist() == [*IDS.tolist(), *target]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(IDS[None], decoder_input_ids=torch.tensor([target]), output_attentions=True)
    places = [(out.encoder_attentions, 0, 0), (out.decoder_attentions, 23, 23)]
    places.append((out.cross_attentions, 23, 0))
    for layer, (maps, query, key) in enumerate(places):
        p = maps[0][0].double()
        queries = slice(query, query + p.shape[1])
        keys = slice(key, key + p.shape[2])
        entropy = torch.special.entr(p).sum(-1)
        got = view.rows[layer]
        close = {"atol": 1e-5, "rtol": 1e-5}
        torch.testing.assert_close(got["entropy"][:, queries].double(), entropy, **close)
        torch.testing.assert_close(got["received"][:, keys].double(), p.sum(1), **close)
        outside = torch.ones(28, dtype=torch.bool)
        outside[queries] = False
        assert got["entropy"][:, outside].isnan().all()
        look = view.looks[layer]
        assert look.heads == (0, 1)
        largest = p.topk(min(16, p.shape[2]), -1).values
        torch.testing.assert_close(
            look.weights[:, queries, : largest.shape[2]].double(), largest, **close
        )
        found = look.keys[:, queries]
        known = found >= 0
        assert ((found >= keys.start) & (found < keys.stop))[known].all()
        own = p.gather(-1, (found - key).clamp(min=0)).masked_fill(~known, 0.0)
        torch.testing.assert_close(own, look.weights[:, queries].double(), **close)
        back = look.readers[:, keys]
        given = p.mT.gather(-1, (back - query).clamp(min=0)).masked_fill(back < 0, 0.0)
        torch.testing.assert_close(given, look.reader_weights[:, keys].double(), **close)
    logs = out.logits[0, :-1].double().log_softmax(-1)
    wanted = -logs.gather(-1, torch.tensor(target)[1:, None])[:, 0]
    assert view.surprise[:23].isnan().all()
    torch.testing.assert_close(view.surprise[23:].double(), wanted, atol=1e-4, rtol=1e-4)


def test_a_decoder_beside_an_encoder_generates_the_target():
    view = text_view(t5(), IDS, generate=4)
    assert view.sides[0] == Side("source", 0, 23)
    assert view.sides[1].count == 1 + len(view.generated)
    assert view.ids[24:].tolist() == [row.token for row in view.generated]


def test_layers_that_are_no_row_of_tokens_are_named():
    class Windows(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(97, 8)
            self.own, self.attn = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, ids):
            x = self.embed(ids)
            q = self.own(x).view(1, 1, -1, 8)
            x = nn.functional.scaled_dot_product_attention(q, q, q)[:, 0]
            return self.attn(x)

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.whole, self.cut = Windows(), Cut()

        def forward(self, ids):
            return self.cut(self.whole(ids))

    class Cut(nn.Module):
        def forward(self, x):
            q = x.view(2, 1, -1, 8)
            return nn.functional.scaled_dot_product_attention(q, q, q).view(1, -1, 8)

    torch.manual_seed(0)
    view = text_view(Pair().eval(), IDS[:22])
    assert [row.place for row in view.layers] == ["whole"]
    assert view.odd == {"cut": "it attends in 2 windows"}
