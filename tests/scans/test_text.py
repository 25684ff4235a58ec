import pytest
import torch
from transformers import BertConfig, BertModel, T5Config, T5ForConditionalGeneration

from attentropy.core.errors import ArgumentError
from attentropy.scans.text import choose, text_view
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
    assert view.looks[2].keys[0, 0].max() > 0
    assert view.surprise is None


def test_sharp_heads_beyond_the_first_key_are_chosen_of_every_layer():
    def layer(*sharp):
        top = torch.tensor(sharp)[:, None].expand(-1, 4)
        return {"top_probability": top, "sink_mass": torch.zeros_like(top)}

    rows = [layer(0.1, 0.5, 0.4), layer(0.9, 0.2)]
    rows[1]["sink_mass"] = torch.tensor([[0.9], [0.0]]).expand(-1, 4)
    assert choose(rows, 3) == [(0, 1), (1, 1), (0, 2)]
