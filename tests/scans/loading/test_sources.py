"""Models are loaded from where the user points, and nothing runs that was not allowed."""

import json
import socket

import pytest
import torch

from attentropy.scans.loading import checkpoints
from attentropy.scans.loading.sources import Permissions, Placement, load
from attentropy.scans.schema import ScanError


def get(name, **allowed):
    return load(None if name is None else str(name), Placement(), Permissions(**allowed))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    path = tmp_path_factory.mktemp("models") / "llama"
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture
def copy(llama, tmp_path):
    import shutil

    return shutil.copytree(llama, tmp_path / "copy")


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_a_folder_of_safetensors(llama):
    source = get(llama)
    assert source.about.architecture == "LlamaForCausalLM"
    assert source.about.name == "llama"
    assert source.about.trained_length == 64
    assert source.about.maximum_length is None  # its positions are computed, not stored
    assert source.encode is None
    assert not source.model.training
    assert "AutoModelForCausalLM.from_pretrained" in source.call


def test_learned_positions_limit_the_length(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_positions=48, n_embd=16, n_layer=1, n_head=2, vocab_size=50)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt")
    assert get(tmp_path / "gpt").about.maximum_length == 48


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
        ("no/such/path", r"does not exist \(--allow-download would look for it on the hub\)"),
        ("absent.gguf", r"MODEL absent\.gguf does not exist"),
    ],
)
def test_names_that_lead_nowhere(name, message):
    with pytest.raises(ScanError, match=message):
        get(name)


def test_folders_that_are_no_model(tmp_path, copy):
    with pytest.raises(ScanError, match=r"is no model: it has no config\.json"):
        get(tmp_path)
    file = tmp_path / "file.txt"
    file.write_text("text")
    with pytest.raises(ScanError, match=r"is neither a folder nor a \.gguf file"):
        get(file)
    (copy / "config.json").write_text("{")
    with pytest.raises(ScanError, match=r"config\.json is not JSON"):
        get(copy)
    (copy / "config.json").write_text("[]")
    with pytest.raises(ScanError, match=r"config\.json is not a JSON object"):
        get(copy)
    (copy / "config.json").write_text('{"model_type": "no-such-type"}')
    with pytest.raises(ScanError, match="cannot be loaded"):
        get(copy)


def test_weights_that_are_missing_or_corrupt(copy):
    weights = copy / "model.safetensors"
    whole = weights.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:5], b"", b"\xff" * 100):
        weights.write_bytes(damaged)
        with pytest.raises(ScanError, match=r"model\.safetensors is corrupt or truncated"):
            get(copy)
    weights.unlink()
    with pytest.raises(ScanError, match=r"has no weights: there is no \.safetensors file"):
        get(copy)


def test_a_shard_that_is_missing(copy):
    index = {"weight_map": {"a": "model-00002-of-00002.safetensors"}}
    (copy / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ScanError, match=r"is incomplete: model-00002-of-00002\.safetensors"):
        get(copy)
    (copy / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ScanError, match="is not an index of weights"):
        get(copy)


class _Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def test_pickled_weights_need_a_permission(copy):
    (copy / "model.safetensors").unlink()
    torch.save({"x": _Bomb()}, copy / "pytorch_model.bin")
    with pytest.raises(ScanError, match=r"pytorch_model\.bin is pickled .* --allow-pickle"):
        get(copy)


def test_allowed_pickles_are_loaded_and_must_fit(copy, llama):
    whole = get(llama).model.state_dict()
    (copy / "model.safetensors").unlink()
    torch.save(whole, copy / "pytorch_model.bin")
    loaded = get(copy, pickle=True).model.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in whole.items())
    torch.save({"other": torch.zeros(3)}, copy / "pytorch_model.bin")
    with pytest.raises(ScanError, match=r"weights do not fit its config: \d+ of \d+ are missing"):
        get(copy, pickle=True)


def test_code_in_the_folder_needs_a_permission(copy):
    config = json.loads((copy / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "evil.Model"}
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "evil.py").write_text("raise SystemExit('the code ran')")
    with pytest.raises(ScanError, match=r"brings its own code, .* --trust-remote-code"):
        get(copy)


def test_gguf_files_are_looked_at(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGML0000")
    with pytest.raises(ScanError, match="is not a GGUF file"):
        get(path)


def test_a_device_that_is_not_there():
    with pytest.raises(ScanError, match="--device cuda cannot be used"):
        load("scans.tiny:make", Placement(device="cuda"), Permissions())
    with pytest.raises(ScanError, match="--device nonsense cannot be used"):
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
    assert checkpoints.maximum_length(RobertaModel(config)) == 32
