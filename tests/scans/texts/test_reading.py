import pytest
import torch
from transformers import BertConfig, BertModel

from attentropy.core.errors import ArgumentError
from attentropy.scans.loading.inputs import Tokens, describe_ids
from attentropy.scans.texts.reading import of_text
from attentropy.scans.texts.sides import Side
from tests.scans.small_llama import llama
from tests.scans.texts.test_view import t5

IDS = torch.arange(3, 20)


def special():
    about = describe_ids(IDS, description="x", files=[], tokenizer="x")
    return Tokens(IDS, about, begin=(1,), end=(2,))


def test_special_tokens_surround_a_text_but_generation_goes_on():
    model = llama()
    model.generation_config.eos_token_id = None
    assert of_text(model, special()).ids.tolist() == [1, *IDS.tolist(), 2]
    found = of_text(model, special(), generate=3)
    assert found.ids[:18].tolist() == [1, *IDS.tolist()]
    assert [row.token for row in found.generated] == found.ids[18:].tolist()


def test_the_decoder_reads_the_same_text_after_its_first_token():
    found = of_text(t5(), special())
    assert found.ids.tolist() == [1, *IDS.tolist(), 2, 0, 1, *IDS.tolist(), 2]
    assert [side.count for side in found.sides] == [19, 20]


def test_an_encoder_has_one_side_and_no_surprise():
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    found = of_text(BertModel(BertConfig(vocab_size=97, num_hidden_layers=1, **sizes)).eval(), IDS)
    assert found.sides == [Side("text", 0, 17)]
    assert found.surprise([]) is None


def test_more_tokens_than_the_model_has_positions_are_refused():
    from tests.models.test_generated import gpt2

    rule = "generate must be at most 47 after 17 tokens, for a model of 64, got 48"
    with pytest.raises(ArgumentError, match=rule):
        of_text(gpt2(), IDS, generate=48)


def test_a_target_is_one_row():
    with pytest.raises(ArgumentError, match=r"target must be one row of ids, got \(1, 2\)"):
        of_text(t5(), IDS, target=torch.ones(1, 2, dtype=torch.int64))
