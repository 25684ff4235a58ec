"""Bits flipped in every kind of file that attentropy reads: a sentence or a result, never more."""

import random
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from attentropy.core.errors import AttentropyError
from attentropy.lab.embedded import load_embedded
from attentropy.models.plan import Plan
from attentropy.scans import store as scans
from attentropy.scans.errors import ScanError
from attentropy.scans.loading import checkpoints, inputs
from attentropy.scans.loading.sources import Permissions, Placement, load
from attentropy.training.runstore import RunStore, read
from tests.faults.outcome import Outcome
from tests.faults.stores import sample

SENTENCES = (AttentropyError, ScanError)


def flips(folder: Path, count: int, draw: random.Random) -> list[Outcome]:
    """`count` flips in each kind of file."""
    return [_flipped(name, path, opened, count, draw) for name, path, opened in _kinds(folder)]


def _flipped(
    name: str, path: Path, opened: Callable[[Path], object], count: int, draw: random.Random
) -> Outcome:
    found = Outcome(f"a flipped bit in {name}")
    opened(path)  # the file is sound before it is damaged
    whole = path.read_bytes()
    head = min(len(whole), 65536)
    for _ in range(count):
        damaged, at = bytearray(whole), draw.randrange(head)
        damaged[at] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                opened(path)
            found.note(None)
        except SENTENCES:
            found.note(None)
        except Exception as error:
            found.note(f"byte {at}: {type(error).__name__}: {error}")
    path.write_bytes(whole)
    return found


def _kinds(folder: Path) -> list[tuple[str, Path, Callable[[Path], object]]]:
    source = load(None, Placement(), Permissions())
    run = folder / "run.db"
    store = RunStore(run)
    for step in range(20):
        store(sample(float(step)), step)
    store.close()
    plan = folder / "plan.json"
    plan.write_text(_plan())
    ids = folder / "ids.npy"
    np.save(ids, np.arange(200) % 200)
    return [
        ("a run store", run, read),
        ("scan.json", _scan(folder), scans.load),
        ("plan.json", plan, Plan.load),
        ("the header of safetensors", _safetensors(folder), checkpoints.check_safetensors),
        ("the header of a GGUF file", _gguf(folder), _load_gguf),
        ("a token file (.npy)", ids, lambda path: inputs.from_file(path, source)),
    ]


def _plan() -> str:
    import attentropy as at

    model = load_embedded()
    tokens = torch.randint(0, 256, (4, 64))
    return at.calibrate(model, tokens, lengths=[32, 64]).to_json()


def _scan(folder: Path) -> Path:
    import attentropy as at

    tokens = torch.randint(0, 256, (2000,))
    return scans.save(folder, at.scan(load_embedded(), tokens, lengths=[32, 64]))


def _safetensors(folder: Path) -> Path:
    from safetensors.torch import save_file

    path = folder / "model.safetensors"
    save_file({f"layer.{i}.weight": torch.zeros(8, 8) for i in range(40)}, path)
    return path


def _gguf(folder: Path) -> Path:
    """A GGUF file of a small Llama, as llama.cpp names its parts."""
    import gguf

    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(32)
    shapes = {"token_embd": (32, 16), "output_norm": (16,), "blk.0.attn_norm": (16,)}
    shapes |= {f"blk.0.attn_{x}": (16, 16) for x in ("q", "k", "v", "output")}
    shapes |= {"blk.0.ffn_norm": (16,), "blk.0.ffn_gate": (32, 16)}
    shapes |= {"blk.0.ffn_up": (32, 16), "blk.0.ffn_down": (16, 32)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.zeros(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _load_gguf(path: Path) -> object:
    return load(str(path), Placement(), Permissions())
