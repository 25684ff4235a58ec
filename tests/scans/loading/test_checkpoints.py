"""A model folder is looked at before anything of it is loaded or run."""

import json

import pytest
import torch

from attentropy.scans.errors import ScanError
from attentropy.scans.loading.sources import Permissions, Placement, load


def get(name, **allowed):
    return load(str(name), Placement(), Permissions(**allowed))


def test_folders_that_are_no_model(tmp_path, copy):
    with pytest.raises(ScanError, match=r"is not a model: it has no config\.json"):
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
    (copy / "config.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    with pytest.raises(ScanError, match=r"config\.json is nested too deep"):
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
    with pytest.raises(ScanError, match=r"pytorch_model\.bin is pickled .* pickle loads it"):
        get(copy)


def test_code_in_the_folder_needs_a_permission(copy):
    config = json.loads((copy / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "evil.Model"}
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "evil.py").write_text("raise SystemExit('the code ran')")
    with pytest.raises(ScanError, match=r"brings its own code, .* without remote_code"):
        get(copy)


def test_gguf_files_are_looked_at(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGML0000")
    with pytest.raises(ScanError, match="is not a GGUF file"):
        get(path)
