"""Small random models of many architectures, with weights sharp enough to tell errors."""

from dataclasses import dataclass, field
from functools import cache

import pytest
import torch


@dataclass(frozen=True)
class Case:
    kind: str  # "causal", "encoder", "image", "pair", "audio"
    config: str
    model: str
    options: dict = field(default_factory=dict)


SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GQA = {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 64}
ROPE_HEAD = {**GQA, "head_dim": 8}

INTERFACE = {
    "llama": Case("causal", "LlamaConfig", "LlamaForCausalLM", GQA),
    "qwen3": Case(
        "causal",
        "Qwen3Config",
        "Qwen3ForCausalLM",
        {**ROPE_HEAD, "sliding_window": 5, "use_sliding_window": True, "max_window_layers": 1},
    ),
    "gemma2": Case(
        "causal",
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {**ROPE_HEAD, "sliding_window": 5, "attn_logit_softcapping": 3.0},
    ),
    "gemma3": Case(
        "causal", "Gemma3TextConfig", "Gemma3ForCausalLM", {**ROPE_HEAD, "sliding_window": 5}
    ),
    "gpt2": Case(
        "causal",
        "GPT2Config",
        "GPT2LMHeadModel",
        {
            "vocab_size": 61,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "scale_attn_by_inverse_layer_idx": True,
        },
    ),
    "gpt_neox": Case("causal", "GPTNeoXConfig", "GPTNeoXForCausalLM", SMALL),
    "bert": Case("encoder", "BertConfig", "BertModel", SMALL),
    "modernbert": Case(
        "encoder",
        "ModernBertConfig",
        "ModernBertModel",
        {
            **SMALL,
            "local_attention": 6,
            "global_attn_every_n_layers": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
        },
    ),
    "albert": Case("encoder", "AlbertConfig", "AlbertModel", {**SMALL, "embedding_size": 16}),
    "vit": Case(
        "image",
        "ViTConfig",
        "ViTModel",
        {k: v for k, v in SMALL.items() if "token" not in k and k != "vocab_size"}
        | {"image_size": 16, "patch_size": 4},
    ),
    "t5": Case(
        "pair",
        "T5Config",
        "T5ForConditionalGeneration",
        {
            "vocab_size": 61,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
    ),
    "bart": Case(
        "pair",
        "BartConfig",
        "BartForConditionalGeneration",
        {
            "vocab_size": 61,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 2,
            "forced_eos_token_id": None,
        },
    ),
    "whisper": Case(
        "audio",
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        {
            "vocab_size": 61,
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "num_mel_bins": 8,
            "max_source_positions": 12,
            "max_target_positions": 32,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
    ),
    "gpt_oss": Case(
        "causal",
        "GptOssConfig",
        "GptOssForCausalLM",
        {**ROPE_HEAD, "sliding_window": 5, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    "deepseek_v3": Case(
        "causal",
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        {
            **SMALL,
            "num_key_value_heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 12,
            "n_routed_experts": 2,
            "n_group": 1,
            "topk_group": 1,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 16,
            "first_k_dense_replace": 2,
        },
    ),
}

TAPPED = {
    "bloom": Case(
        "causal",
        "BloomConfig",
        "BloomForCausalLM",
        {
            "vocab_size": 61,
            "hidden_size": 32,
            "n_layer": 2,
            "n_head": 4,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "gptj": Case(
        "causal",
        "GPTJConfig",
        "GPTJForCausalLM",
        {
            "vocab_size": 61,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "rotary_dim": 4,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "mpnet": Case("encoder", "MPNetConfig", "MPNetModel", SMALL),
    "deberta_v2": Case(
        "encoder", "DebertaV2Config", "DebertaV2Model", {**SMALL, "relative_attention": True}
    ),
    "mpt": Case(
        "causal",
        "MptConfig",
        "MptForCausalLM",
        {"vocab_size": 61, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    ),
    "falcon": Case(
        "causal",
        "FalconConfig",
        "FalconForCausalLM",
        {**SMALL, "new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False},
    ),
}


@cache
def build(name: str, implementation: str = "eager"):
    import transformers

    case = (INTERFACE | TAPPED)[name]
    torch.manual_seed(7)
    config = getattr(transformers, case.config)(**case.options)
    kind = getattr(transformers, case.model)
    if implementation == "sdpa" and not kind._supports_sdpa:
        pytest.skip(f"{case.model} of transformers {transformers.__version__} has no sdpa")
    if name == "gpt_oss" and torch.__version__ < (2, 9):
        pytest.skip(
            "experts of transformers need aten::_grouped_mm, which torch 2.8 has on GPUs only"
        )
    config._attn_implementation = implementation
    model = kind(config).eval()
    torch.manual_seed(8)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(std=0.35)
            elif "sink" in key:
                parameter.normal_()
    return model


def inputs(name: str, *, padded: bool = True) -> dict[str, torch.Tensor]:
    case = (INTERFACE | TAPPED)[name]
    torch.manual_seed(9)
    if case.kind == "image":
        return {"pixel_values": torch.randn(2, 3, 16, 16)}
    ids = torch.randint(3, 61, (3, 13))
    mask = torch.ones_like(ids)
    if padded:
        mask[0, 9:] = 0
        if case.kind == "causal":
            mask[1, :4] = 0
        else:
            mask[1, 11:] = 0
    if case.kind == "audio":
        return {
            "input_features": torch.randn(3, 8, 24),
            "decoder_input_ids": ids[:, :7],
        }
    batch = {"input_ids": ids, "attention_mask": mask}
    if case.kind == "pair":
        batch |= {"decoder_input_ids": ids[:, :7].flip(0)}
    return batch


def eager_maps(name: str, batch: dict) -> tuple[dict, dict[str, list[torch.Tensor]]]:
    """Outputs of the eager model, and its attention maps by the name of their kind."""
    model = build(name)
    with torch.no_grad():
        out = model(**batch, output_attentions=True)
    kind = (INTERFACE | TAPPED)[name].kind
    if kind in ("pair", "audio"):
        maps = {
            "encoder": out.encoder_attentions,
            "decoder": out.decoder_attentions,
            "cross": out.cross_attentions,
        }
    else:
        maps = {"": out.attentions}
    return out, {key: list(value) for key, value in maps.items()}


def first_output(out) -> torch.Tensor:
    return out.logits if "logits" in out else out.last_hidden_state
