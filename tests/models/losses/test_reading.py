"""One pass as each kind of model needs it."""

import torch
from torch import nn
from transformers import BertConfig, BertModel, T5Config, T5ForConditionalGeneration

from attentropy.models.intercept.candidates import device_of
from attentropy.models.losses.reading import has_decoder_beside, logits_of, read, takes, takes_cache
from scans.small_llama import llama
from scans.tiny import Tiny

BERT = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}


def test_no_cache_is_made_unless_it_is_asked_for():
    ids = torch.randint(97, (1, 5))
    assert read(llama(), ids).past_key_values is None
    assert read(llama(), ids, use_cache=True).past_key_values is not None


def test_a_decoder_reads_the_same_text():
    config = T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    config.decoder_start_token_id = 0
    model = T5ForConditionalGeneration(config).eval()
    assert has_decoder_beside(model)
    assert logits_of(read(model, torch.tensor([[1, 2, 3]])), torch.tensor([[1, 2, 3]])) is not None


def test_which_models_take_positions_and_a_cache():
    assert takes(llama(), "position_ids")
    assert takes_cache(llama())
    bert = BertModel(BertConfig(**BERT, intermediate_size=8))
    for model in (Tiny(), bert, nn.Linear(2, 2)):
        assert not takes_cache(model) or model is bert
    assert not takes(Tiny(), "position_ids")


def test_hidden_states_are_no_logits():
    ids = torch.tensor([[1, 7]])
    assert logits_of(torch.zeros(1, 2, 7), ids) is None  # 7 is not among 7 tokens
    assert logits_of(torch.zeros(1, 2, 8), ids) is not None
    assert logits_of(torch.zeros(1, 8), ids) is None


def test_the_device_is_that_of_the_weights():
    assert device_of(nn.Linear(2, 2, device="meta")).type == "meta"
    assert device_of(nn.Identity()).type == "cpu"
