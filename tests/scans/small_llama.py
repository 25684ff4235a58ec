"""A small random llama whose scores are sharp enough to tell keys apart."""

import torch
from torch import nn


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).eval()
    for layer in model.model.layers:
        nn.init.normal_(layer.self_attn.q_proj.weight, std=0.5)
        nn.init.normal_(layer.self_attn.k_proj.weight, std=0.5)
    return model
