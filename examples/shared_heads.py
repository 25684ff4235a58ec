"""Heads over processes: torchrun --nproc-per-node 2 examples/shared_heads.py.

transformers gives each process some heads of every layer (tensor parallelism). A scan, a plan and a
text speak of the heads of the whole model, on every process. Without torchrun one process has all
heads, and prints the same numbers.
"""

import os
import tempfile

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

import attentropy as at

logging.disable_progress_bar()
torch.set_num_threads(1)
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def save(folder: str) -> None:
    """A small model to load; take your own folder instead."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=256, max_position_embeddings=64, **SIZES, **HEADS)
    LlamaForCausalLM(config).save_pretrained(folder)


def load(folder: str) -> LlamaForCausalLM:
    if not dist.is_initialized():
        return LlamaForCausalLM.from_pretrained(folder).eval()
    from transformers.distributed import DistributedConfig

    by_heads = DistributedConfig(tp_plan="auto", tp_size=dist.get_world_size())
    return LlamaForCausalLM.from_pretrained(folder, distributed_config=by_heads).eval()


def main() -> None:
    first = os.environ.get("RANK", "0") == "0"
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as own:
        box = [own]
        if first:
            save(own)
        if dist.is_initialized():
            dist.broadcast_object_list(box)
        model = load(box[0])
        tokens = torch.arange(512) * 7 % 251
        found = at.scan(model, tokens, lengths=[32, 64, 128], calibrate=True)
        if dist.is_initialized():
            dist.barrier()
    if first:
        print(f"{found.processes} processes")
        for row in found.measures[-1].rows:
            print(f"{row.label}: entropy {row.entropy:.4f}")
        factors = found.plan.factors[found.measures[0].rows[0].layer]
        print("factors at 128:", *(f"{head[-1]:.3f}" for head in factors))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
