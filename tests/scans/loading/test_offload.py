"""Weights on disk give the numbers of weights in memory, within little memory."""

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import attentropy as at
from attentropy.core.statistics import NAMES
from attentropy.models.losses import lockstep
from attentropy.scans.errors import ScanError
from attentropy.scans.loading import offload
from attentropy.scans.loading.sources import Permissions, Placement, load
from attentropy.scans.measuring.measure import measure_several
from tests.scans.loading.large import write_gguf, write_llama


def get(path, device_map, *, dtype="bfloat16"):
    return load(str(path), Placement(dtype, "cpu", device_map), Permissions())


def scanned(source):
    tokens = torch.randint(0, 300, (200,), generator=torch.Generator().manual_seed(0))
    found = at.scan(source.model, tokens, lengths=[20, 50], batch=2)
    rows = [[row[name] for name in NAMES] for one in found.measures for row in one.rows]
    return repr((rows, [one.loss for one in found.measures], found.verdict))


@pytest.mark.parametrize("kind", ["disk", "auto"])
def test_a_sharded_folder_is_read_in_place(kind, tmp_path):
    write_llama(tmp_path, layers=2, width=32)
    source = get(tmp_path, kind)
    assert source.about.device_map == kind
    assert {p.dtype for p in source.model.parameters()} == {torch.bfloat16}
    away = {p.device.type for p in source.model.parameters()}
    assert away == ({"meta", "cpu"} if kind == "disk" else {"cpu"})
    if kind == "disk":
        files = source.model.model.layers[0].mlp.up_proj._hf_hook.weights_map.dataset.index
        assert {one["safetensors_file"].rpartition("/")[0] for one in files.values()} == {
            str(tmp_path)
        }
        assert scanned(source) == scanned(get(tmp_path, None))
    assert source.model.lm_head.weight.device.type == ("meta" if kind == "disk" else "cpu")


def test_weights_are_read_once_for_all_lengths(tmp_path, monkeypatch):
    from accelerate.utils.offload import OffloadedWeightsLoader as Loader

    size = write_llama(tmp_path, layers=2, width=32)
    source, whole = get(tmp_path, "disk"), get(tmp_path, None)
    read, plain = [], Loader.__getitem__

    def counted(self, name):
        read.append(plain(self, name).nbytes)
        return plain(self, name)

    monkeypatch.setattr(Loader, "__getitem__", counted)
    ids = torch.arange(240) * 7 % 300
    cut = [ids.view(-1, n).split(2) for n in (20, 40)]
    found = measure_several(source.model, cut)
    once, passes = sum(read), sum(len(one) for one in cut)
    assert 0.95 * size < once <= size  # the smallest module stays in memory
    for one, want in zip(found, measure_several(whole.model, cut), strict=True):
        assert repr(one.measure.rows) == repr(want.measure.rows)
        assert repr(one.measure.profiles) == repr(want.measure.profiles)
        assert torch.equal(one.losses, want.losses)
    read.clear()
    monkeypatch.setattr(lockstep, "blocks", lambda model: [])
    measure_several(source.model, cut)
    assert sum(read) == passes * once


def test_a_gguf_file_is_converted_block_by_block(tmp_path, monkeypatch):
    pytest.importorskip("gguf")
    path = tmp_path / "small.gguf"
    write_gguf(path, layers=3, width=32)
    monkeypatch.setattr(offload, "ROOM", 1)  # a layer at a time
    ids = torch.arange(40)[None]
    whole, source = get(path, None, dtype="float32").model, get(path, "disk", dtype="float32")
    with torch.no_grad():
        assert torch.equal(source.model(ids).logits, whole(ids).logits)
    files = source.model.lm_head._hf_hook.weights_map.dataset.index
    folder = Path(files["lm_head.weight"]["safetensors_file"]).parent
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert len({*index["weight_map"].values()}) == 3 + 3  # layers, and embedding, norm and head
    del source
    gc.collect()
    assert not folder.exists()


def test_blocks_are_whole_layers_as_far_as_there_is_room():
    names = [("token_embd.weight", 5), ("blk.0.a", 2), ("blk.0.b", 2), ("blk.1.a", 2), ("x", 1)]
    whole = [["token_embd.weight"], ["blk.0.a", "blk.0.b", "blk.1.a"], ["x"]]
    assert list(offload._blocks(names, 6)) == whole
    assert len(list(offload._blocks(names, 1))) == 4
    assert list(offload._blocks([], 6)) == []


def test_modules_but_the_smallest_stay_where_they_are_told():
    model = torch.nn.Sequential(torch.nn.Linear(9, 9), torch.nn.LayerNorm(3), torch.nn.ReLU())
    assert offload.device_map(model, "disk", "cpu") == {"0": "disk", "1": "cpu"}
    assert offload.device_map(model, "cpu", "cuda:1") == {"0": "cpu", "1": "cuda:1"}
    assert offload.device_map(model, "cpu", "cpu") == {"": "cpu"}
    assert offload.device_map(model, "auto", "cpu") == "auto"


def test_what_cannot_be_offloaded_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ScanError, match="^device_map takes a transformers folder or a GGUF file"):
        load(None, Placement(device_map="disk"), Permissions())
    with pytest.raises(ScanError, match="^device_map must be auto, cpu or disk, got 'ram'"):
        offload.check_kind("ram")
    monkeypatch.setattr(offload, "find_spec", lambda name: None)
    with pytest.raises(ScanError, match="^device_map needs accelerate: pip install"):
        offload.check_kind("disk")


MEASURED = """
import json, sys
from pathlib import Path
import torch, transformers, accelerate
from accelerate.utils.offload import OffloadedWeightsLoader as Loader
from attentropy.models.losses import lockstep
from attentropy.scans import scan
from attentropy.scans.loading.sources import Permissions, Placement, load

def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

torch.set_num_threads(1)
folder, kind = sys.argv[1:]
before, read = status("VmRSS"), []
plain = Loader.__getitem__

def counted(self, name):
    value = plain(self, name)
    read.append(value.nbytes)
    return value

Loader.__getitem__ = counted
if kind == "pass by pass":
    lockstep.blocks = scan.blocks = lambda model: []
placement = Placement("bfloat16", "cpu", None if kind == "memory" else "disk")
source = load(folder, placement, Permissions())
tokens = torch.arange(64) * 7 % 300
found = scan.scan(source.model, tokens, lengths=[16, 32], tokens_per_length=32)
rows = repr([row for one in found.measures for row in one.rows])
print(json.dumps({"peak": status("VmHWM") - before, "read": sum(read), "rows": rows}))
"""


@pytest.mark.slow
def test_a_model_larger_than_the_memory_it_may_use(tmp_path):
    size = write_llama(tmp_path, layers=16, width=2048)
    assert size >= 1.5e9
    found = {}
    for kind in ("disk", "pass by pass", "memory"):
        command = [sys.executable, "-c", MEASURED, str(tmp_path), kind]
        run = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        assert run.returncode == 0, run.stderr
        found[kind] = json.loads(run.stdout.splitlines()[-1])
    print(size, {kind: (one["peak"], one["read"]) for kind, one in found.items()})
    assert found["disk"]["rows"] == found["pass by pass"]["rows"] == found["memory"]["rows"]
    assert found["disk"]["peak"] < 2**30 < size < found["memory"]["peak"]
    # lengths 16 and 32 are two windows and one: three passes, or once through the layers
    assert found["pass by pass"]["read"] - found["disk"]["read"] == pytest.approx(
        2 * size, rel=0.01
    )
