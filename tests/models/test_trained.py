"""Where the trained length is read, in which order, and that a guess is never made."""

from types import SimpleNamespace as Of

import pytest
from torch import nn
from transformers import GPT2Config, LlamaConfig

from attentropy.models.trained import trained_length


def test_a_model_says_it_itself():
    model = nn.Linear(2, 2)
    model.trained_length = 128
    assert str(trained_length(model)) == "128 (trained_length)"


def test_rope_names_the_length_before_it_was_stretched():
    rope = {
        "rope_type": "yarn",
        "factor": 4.0,
        "rope_theta": 1e4,
        "original_max_position_embeddings": 64,
    }
    found = trained_length(
        Of(config=LlamaConfig(max_position_embeddings=256, rope_parameters=rope))
    )
    assert (found.tokens, found.source) == (
        64,
        "original_max_position_embeddings of rope_parameters",
    )


def test_groups_of_layers_with_rope_of_their_own():
    group = {"rope_type": "yarn", "original_max_position_embeddings": 64}
    found = trained_length(Of(rope_parameters={"full_attention": group, "sliding": {}}))
    assert found.tokens == 64


@pytest.mark.parametrize(
    ("config", "tokens", "source"),
    [(LlamaConfig(max_position_embeddings=256), 256, "max_position_embeddings"),
     (GPT2Config(n_positions=48), 48, "max_position_embeddings"),
     (Of(n_positions=48), 48, "n_positions"),
     (Of(max_seq_len=2048), 2048, "max_seq_len")],
)  # fmt: skip
def test_a_config_says_it(config, tokens, source):
    assert trained_length(config) == trained_length(Of(config=config))
    assert (trained_length(config).tokens, trained_length(config).source) == (tokens, source)


def test_a_tokenizer_is_asked_last_and_its_no_limit_is_none():
    told = trained_length(Of(), Of(model_max_length=512))
    assert (told.tokens, told.source) == (512, "model_max_length of the tokenizer")
    assert trained_length(Of(max_position_embeddings=8), Of(model_max_length=512)).tokens == 8
    assert trained_length(Of(), Of(model_max_length=int(1e30))) is None


def test_nothing_is_guessed():
    assert trained_length(nn.Linear(2, 2)) is None
    assert trained_length(Of(max_position_embeddings=0, n_positions=True)) is None


def test_a_gguf_file_says_it(tmp_path):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "llama")
    writer.add_context_length(768)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = trained_length(Of(), gguf=tmp_path / "m.gguf")
    assert (found.tokens, found.source) == (768, "llama.context_length of the GGUF file")
