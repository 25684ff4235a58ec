"""Models are loaded from where the user points, and nothing runs that was not allowed."""

import pytest

from attentropy.models.losses.probes import position_limit
from attentropy.scans.errors import ScanError
from attentropy.scans.loading.sources import Permissions, Placement, load


def get(name, **allowed):
    return load(None if name is None else str(name), Placement(), Permissions(**allowed))


def test_a_folder_of_safetensors(llama):
    source = get(llama)
    assert source.about.architecture == "LlamaForCausalLM"
    assert source.about.name == "llama"
    assert source.about.trained_length == 64
    assert source.about.maximum_length is None  # its positions are computed, not stored
    assert source.encode is None
    assert not source.model.training
    assert "AutoModelForCausalLM.from_pretrained" in source.call


def test_a_factory(monkeypatch):
    source = get("scans.tiny:make")
    assert source.about.kind == "factory"
    assert source.about.trained_length == 32
    assert source.encode("hé") == list("hé".encode())
    assert source.decode(104) == "h"
    assert get("scans.tiny:short").about.maximum_length == 64


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("scans.absent:make", "there is no module scans.absent"),
        ("scans.tiny:absent", "scans.tiny has no absent"),
        ("scans.tiny:constant", "constant is not callable"),
        ("scans.tiny:number", "must return a torch.nn.Module, got int"),
        ("scans.tiny:broken", "failed: KeyError: 'no weights today'"),
        ("no/such/path", r"does not exist \(download would look for it on the hub\)"),
        ("absent.gguf", r"model absent\.gguf does not exist"),
    ],
)
def test_names_that_lead_nowhere(name, message):
    with pytest.raises(ScanError, match=message):
        get(name)


def test_a_device_that_is_not_there():
    with pytest.raises(ScanError, match="device cuda cannot be used"):
        load("scans.tiny:make", Placement(device="cuda"), Permissions())
    with pytest.raises(ScanError, match="device nonsense cannot be used"):
        load("scans.tiny:make", Placement(device="nonsense"), Permissions())


def test_padding_rows_are_no_positions():
    from transformers import RobertaConfig, RobertaModel

    config = RobertaConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=34,
        vocab_size=50,
    )
    assert position_limit(RobertaModel(config)) == 32


def test_learned_positions_limit_the_length(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_positions=48, n_embd=16, n_layer=1, n_head=2, vocab_size=50)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt")
    assert get(tmp_path / "gpt").about.maximum_length == 48
