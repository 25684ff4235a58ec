import numpy as np
import pytest
import torch
from torch import nn

import attentropy as at
from attentropy.core.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from attentropy.extensions.arguments import check_readable, checked
from attentropy.lab.embedded import load_embedded, sample_bytes
from tests.extensions.small_models import grouped_llama

BYTES = torch.tensor(list(sample_bytes()[:6000]))
IDS = "tokens must be ids of tokens"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"to": 100}, ArgumentError, "to must be beyond the trained length 128, got 100"),
        ({"to": 128}, ArgumentError, "to must be beyond the trained length 128, got 128"),
        ({"to": 512.0}, ArgumentError, "to must be an integer >= 2, got 512.0"),
        ({"to": None}, ArgumentError, "to must be an integer >= 2, got None"),
        ({"texts": 0}, ArgumentError, "texts must be an integer >= 1, got 0"),
        ({"trained": 1}, ArgumentError, "trained must be an integer >= 2, got 1"),
        ({"trained": "x"}, ArgumentError, "trained must be an integer >= 2, got 'x'"),
        ({"finalists": 0}, ArgumentError, "finalists must be an integer >= 1, got 0"),
        ({"encode": 3}, ArgumentTypeError, "encode must be a function of a string, got int"),
        ({"tokens": "text"}, ArgumentTypeError, f"{IDS}, got a string"),
        ({"tokens": None}, ArgumentTypeError, f"{IDS}, one row, got NoneType"),
        ({"tokens": [[1, 2], [3]]}, ArgumentTypeError, f"{IDS}, one row, got list"),
        ({"tokens": BYTES.float()}, ArgumentTypeError, f"{IDS}, got numbers of type torch.float"),
        ({"tokens": []}, ArgumentError, "tokens must be at least .* for 3 texts of 512, got 0"),
        ({"tokens": BYTES[:900]}, ArgumentError, "tokens must be at least .* for 3 texts of 512"),
        ({"tokens": -BYTES}, ArgumentError, "ids of the model's vocabulary.*, got -"),
        ({"model": 3}, ArgumentTypeError, "model must be a torch.nn.Module, got int"),
        ({"model": nn.Linear(3, 3)}, UnsupportedError, "Linear cannot read these tokens"),
        ({"model": nn.Embedding(256, 3)}, UnsupportedError, "Embedding gives no logits of the ne"),
    ],
)
def test_bad_arguments(change, error, message):
    given = {"model": load_embedded(), "tokens": BYTES, "to": 512, **change}
    with pytest.raises(error, match=message):
        at.extend(given.pop("model"), given.pop("tokens"), **given)


@pytest.mark.parametrize("kind", [list, np.asarray, torch.as_tensor, lambda ids: ids[None]])
def test_tokens_are_a_row_of_any_kind(kind):
    ids, count = checked(load_embedded(), kind(BYTES), to=256, texts=None, trained=None)
    assert torch.equal(ids, BYTES)
    assert count > 3


def test_ids_outside_of_the_vocabulary_are_named():
    model = grouped_llama()
    rows = model.config.vocab_size
    check_readable(model, torch.tensor([0, rows - 1]))
    with pytest.raises(ArgumentError, match=f"vocabulary, 0 to {rows - 1}, got {rows}$"):
        check_readable(model, torch.tensor([0, rows]))


def test_a_table_of_positions_is_not_read_beyond_its_end():
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": 256}
    model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **sizes))
    rule = "to must be at most 64: GPT2LMHeadModel has a table of that many positions.*, got 128"
    with pytest.raises(ArgumentError, match=rule):
        at.extend(model, BYTES, to=128)


def test_a_model_that_refuses_the_length_is_named():
    from transformers import MptConfig, MptForCausalLM

    sizes = {"d_model": 8, "n_layers": 1, "n_heads": 2, "max_seq_len": 64, "vocab_size": 256}
    model = MptForCausalLM(MptConfig(**sizes)).train()
    with pytest.raises(UnsupportedError, match=r"MptForCausalLM does not read 128 tokens \(Runti"):
        at.extend(model, BYTES, to=128)
    assert model.training
