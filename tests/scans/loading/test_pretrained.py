"""transformers models and tokenizers, loaded quietly."""

import json

import pytest
import torch

from attentropy.scans.errors import ScanError
from attentropy.scans.loading import pretrained
from attentropy.scans.loading.sources import Permissions, Placement, load


def get(name, **allowed):
    return load(str(name), Placement(), Permissions(**allowed))


def test_allowed_pickles_are_loaded_and_must_fit(copy, llama):
    whole = get(llama).model.state_dict()
    (copy / "model.safetensors").unlink()
    torch.save(whole, copy / "pytorch_model.bin")
    loaded = get(copy, pickle=True).model.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in whole.items())
    torch.save({"other": torch.zeros(3)}, copy / "pytorch_model.bin")
    with pytest.raises(ScanError, match=r"weights do not fit its config: \d+ of \d+ are missing"):
        get(copy, pickle=True)


OPTIONS = {"local_files_only": True, "trust_remote_code": False}


def test_a_folder_without_a_tokenizer_has_none(llama):
    assert pretrained.load_tokenizer(str(llama), options=OPTIONS) is None


def test_loading_is_quiet_and_in_the_precision_asked_for(llama, capfd):
    model = pretrained.load_model(str(llama), dtype="bfloat16", pickle=False, options=OPTIONS)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert type(model).__name__ == "LlamaForCausalLM"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["someone/kernel", "kernels-community/flash-attn2"])
def test_a_config_cannot_make_transformers_fetch_a_kernel(copy, name):
    file = copy / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"attn_implementation": name}))
    with pytest.warns(UserWarning, match=f"asks for the attention of '{name}'"):
        model = get(copy).model
    assert model.config._attn_implementation == "sdpa"


def test_what_the_library_raises_is_one_sentence(copy):
    (copy / "config.json").write_text('{"model_type": "no-such-type"}')
    with pytest.raises(ScanError, match=r"^model .*copy cannot be loaded: [^\n]*$"):
        pretrained.load_model(str(copy), dtype="float32", pickle=False, options=OPTIONS)


@pytest.mark.parametrize(
    ("kind", "processes", "said"),
    [
        ("Llama", 4, "divides num_attention_heads = 6, got 4"),
        ("Llama", 3, "divides num_key_value_heads = 2, got 3"),
        ("GPT2", 2, "transformers has no plan to share a model of type gpt2"),
        ("Llama", 2, None),
    ],
)
def test_heads_that_processes_cannot_share_are_told_at_once(kind, processes, said, monkeypatch):
    import transformers

    sizes = {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 48}
    config = getattr(transformers, f"{kind}Config")(**sizes if kind == "Llama" else {})
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: processes)
    if said is None:
        pretrained._check_shares(config)
        return
    with pytest.raises(ScanError, match=said):
        pretrained._check_shares(config)
