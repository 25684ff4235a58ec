import numpy as np
import pytest
import torch
from torch import nn

import attentropy as at
from attentropy.core.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from attentropy.extensions.arguments import check_begin, check_readable, checked, left_out, whole
from attentropy.extensions.candidates import Task
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
        ({"begin": "x"}, ArgumentTypeError, "begin must be a list of ids, got 'x'"),
        ({"begin": 1}, ArgumentTypeError, "begin must be a list of ids, got 1"),
        ({"begin": [-1]}, ArgumentError, r"begin must be ids of tokens, 0 or more, got \[-1\]"),
        ({"done": "x"}, ArgumentTypeError, "done must be a Record, got str"),
        ({"listener": print}, ArgumentTypeError, "listener must be a Listener, got builtin"),
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


def test_whole_numbers_of_numpy_are_whole_numbers():
    assert [type(whole(x)) for x in (np.int64(3), 3, None, 3.0, True)] == [
        int, int, type(None), float, bool
    ]  # fmt: skip
    assert check_begin(torch.tensor([[1]])) == check_begin([np.int32(1)]) == (1,)
    assert check_begin(None) == ()


def masked(**options):
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 256}
    special = dict.fromkeys(("pad", "bos", "eos", "cls", "sep"), 0)
    ids = {f"{name}_token_id": value for name, value in special.items()}
    return ModernBertForMaskedLM(ModernBertConfig(intermediate_size=8, **sizes, **ids, **options))


def two_texts():
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 8, "num_layers": 1, "num_heads": 2, "d_ff": 8, "d_kv": 4}
    return T5ForConditionalGeneration(T5Config(vocab_size=256, **sizes))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (masked, "ModernBertForMaskedLM sees the tokens that it would predict: it is not causal"),
        (two_texts, "T5ForConditionalGeneration has an encoder and a decoder, and extend takes"),
        (lambda: grouped_llama().to("meta"), "a model whose weights are loaded, got Llama.* on me"),
    ],
)
def test_models_that_cannot_be_judged_are_named(make, message):
    ids = BYTES % 97
    with pytest.raises((ArgumentError, UnsupportedError), match=message):
        at.extend(make(), ids, to=128, trained=64)


def test_what_exists_without_rotary_positions_is_said_at_once():
    model = load_embedded()
    task = Task(model="Decoder", trained=128, to=256, layers={})
    assert left_out(model, task, exported=False) == [
        "No scaling of positions is tried: "
        f"{type(model).__name__} has no rotary positions that its config sets. Log n, windows with sinks "
        "and temperatures are."
    ]
    assert left_out(grouped_llama(), task, exported=False) == []


def test_a_model_that_refuses_the_length_is_named():
    from transformers import MptConfig, MptForCausalLM

    sizes = {"d_model": 8, "n_layers": 1, "n_heads": 2, "max_seq_len": 64, "vocab_size": 256}
    model = MptForCausalLM(MptConfig(**sizes)).train()
    with pytest.raises(UnsupportedError, match=r"MptForCausalLM does not read 128 tokens \(Runti"):
        at.extend(model, BYTES, to=128)
    assert model.training
