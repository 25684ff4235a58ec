"""One long prompt over processes, and its continuation.

    torchrun --nproc-per-node 2 examples/shared_cache.py

Each process reads its part of the prompt and keeps its part of the cache. Every new token is read
by all of them; each attends the keys that it holds, and row states merge with one message for each
layer. The tokens are those of one process, which plain `python` shows.
"""

import os

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

import attentropy as at

torch.set_num_threads(1)
PROMPT, NEW = 100, 8


def build() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config).eval()


@torch.no_grad()
def main() -> None:
    model, prompt = build(), torch.arange(PROMPT)[None] * 7 % 251
    shared = "RANK" in os.environ
    if shared:
        dist.init_process_group("gloo")
        at.steer(model, context_parallel=dist.group.WORLD)
        prompt = at.contiguous.shard(prompt)
    output = model(prompt, use_cache=True)
    token = output.logits[:, -1:].argmax(-1)
    if shared:  # the process with the end of the prompt knows what comes next
        dist.broadcast(token, dist.get_world_size() - 1)
    tokens = [token]
    for _ in range(NEW - 1):
        output = model(tokens[-1], past_key_values=output.past_key_values)
        tokens.append(output.logits[:, -1:].argmax(-1))
    if not shared or dist.get_rank() == 0:
        print("tokens:", *(int(token) for token in tokens))
    if shared:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
