"""Small random models of four architectures, whose heads are sharp enough to tell keys apart."""

import re

import torch
from torch import nn

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def words(text):
    """Tokens of a text for these models: words, single digits and signs."""
    return [
        87 + int(part) if part.isdigit() else sum(map(ord, part)) % 87
        for part in re.findall(r"\d|[A-Za-z]+|[^\w\s]", text)
    ]


def grouped_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return _sharp(LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **SIZES)), "q_proj", "k_proj")


def qwen2():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return _sharp(Qwen2ForCausalLM(Qwen2Config(num_key_value_heads=2, **SIZES)), "q_proj", "k_proj")


def gpt_neox():
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(rotary_pct=0.5, **SIZES)
    return _sharp(GPTNeoXForCausalLM(config), "query_key_value")


def phi3():
    from transformers import Phi3Config, Phi3ForCausalLM

    return _sharp(Phi3ForCausalLM(Phi3Config(num_key_value_heads=2, **SIZES)), "qkv_proj")


def qwen3():
    """Normalises its queries after their projection."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(num_key_value_heads=2, head_dim=8, **SIZES)
    return _sharp(Qwen3ForCausalLM(config), "q_proj", "k_proj")


def _sharp(model, *projections):
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if any(one in name for one in projections):
            nn.init.normal_(weight, std=0.4)  # biases too
    return model.eval().requires_grad_(False)
