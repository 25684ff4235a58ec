"""Model files of any size, written layer by layer."""

import json

import numpy as np
import torch


def write_llama(folder, *, layers, width):
    """A llama in bfloat16, a safetensors file for each layer; returns the bytes of its weights."""
    from safetensors.torch import save_file
    from transformers import LlamaConfig

    config = LlamaConfig(
        vocab_size=300,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
    )
    config.save_pretrained(folder)
    shapes = {
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (width // 2, width),
        "self_attn.v_proj": (width // 2, width),
        "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (4 * width, width),
        "mlp.up_proj": (4 * width, width),
        "mlp.down_proj": (width, 4 * width),
    }
    ends = {"model.embed_tokens": (300, width), "lm_head": (300, width), "model.norm": (width,)}
    norms = ("input_layernorm", "post_attention_layernorm")
    files = [{f"{name}.weight": shape for name, shape in ends.items()}]
    for layer in range(layers):
        inside = shapes | dict.fromkeys(norms, (width,))
        files.append({f"model.layers.{layer}.{n}.weight": shape for n, shape in inside.items()})
    where, size = {}, 0
    for number, named in enumerate(files):
        weights = {name: _weights(shape, number) for name, shape in named.items()}
        file = f"model-{number:05d}.safetensors"
        save_file(weights, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(weights, file)
        size += sum(2 * x.numel() for x in weights.values())
    index = {"metadata": {"total_size": size}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return size


def _weights(shape, seed):
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(min(64, shape[0]), shape[1], generator=generator) * shape[1] ** -0.5
    return rows.repeat(-(-shape[0] // len(rows)), 1)[: shape[0]].to(torch.bfloat16)


def write_gguf(path, *, layers, width):
    """A llama in 8-bit blocks."""
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    writer = GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(width // 4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(300)
    random = np.random.default_rng(0)

    def add(name, *shape):
        data = random.normal(size=shape).astype(np.float32) * shape[-1] ** -0.5
        kind = GGMLQuantizationType.Q8_0
        writer.add_tensor(name, quantize(data, kind), raw_dtype=kind)

    def add_ones(name):
        writer.add_tensor(name, np.ones(width, dtype=np.float32))

    add("token_embd.weight", 300, width)
    for layer in range(layers):
        block = f"blk.{layer}"
        for name, rows in (("q", width), ("k", width // 2), ("v", width // 2), ("output", width)):
            add(f"{block}.attn_{name}.weight", rows, width)
        add(f"{block}.ffn_gate.weight", 2 * width, width)
        add(f"{block}.ffn_up.weight", 2 * width, width)
        add(f"{block}.ffn_down.weight", width, 2 * width)
        add_ones(f"{block}.attn_norm.weight")
        add_ones(f"{block}.ffn_norm.weight")
    add_ones("output_norm.weight")
    add("output.weight", 300, width)
    for write in ("header_to_file", "kv_data_to_file", "tensors_to_file"):
        getattr(writer, f"write_{write}")()
    writer.close()
