"""Small configurations of any architecture of transformers, by the names of their fields.

A field gets the value of the first rule that its whole name matches. Only fields that change are
passed to the configuration, so that it derives the others. How much is shrunk is a value of `LEVELS`:
where the smallest configuration cannot be built or run, the next is tried.
"""

import re
from dataclasses import dataclass

from tests.models.zoo.exceptions import FIELDS, LEAVE

WIDTH, HEAD, HEADS, KEY_HEADS, DEPTH, VOCABULARY, POSITIONS = 64, 16, 4, 2, 2, 128, 128

DEPTHS = [
    (r"num_feat_extract_layers|num_adapter_layers|num_residual_layers", None),
    (r"(num_)?(encoder|decoder|enc|dec|text|vision|cross|x|l|r)_(num_)?(hidden_)?layers", DEPTH),
    (r"num_hidden_layers|n_layers?|num_layers|layers|depth|num_blocks|(en|de)coder_depth", DEPTH),
    (r".*_(depth|num_layers)|num_.*_(layers|blocks)", DEPTH),
    (r"first_k_dense_replace|num_dense_layers|moe_layer_start_index|num_kv_shared_layers", 1),
    (r"max_window_layers|expert_interval|moe_every_n_layers|interleave_moe_layer_step", 1),
    (r"num_nextn_predict_layers|mtp_num_layers|mlp_layer_.*", 0),
    (r"num_queries|num_query_tokens|num_latents|n_latents|resampler_n_latents|num_image_tokens", 8),
    (r"num_learnable_queries|query_length|qformer_n_queries", 8),
]
VOCABULARIES = [
    (r"(text_|embedding_)?vocab_size|.*_vocab_size|vocab_size_.*", VOCABULARY),
    (r"max_position_embeddings|n_positions|n_ctx|max_seq_len(gth)?|max_2d_position.*", POSITIONS),
    (r"max_(source|target|text|encoder|decoder)_positions|max_position(_embedding)?s?", POSITIONS),
    (r"num_experts|n_routed_experts|num_local_experts|(moe_)?num_experts|n_experts|expert_num", 4),
    (r"num_experts_per_tok(en)?|moe_topk|moe_top_k|moe_k|top_k_experts|num_experts_per_.*", 2),
    (r"n_group|topk_group|num_expert_group.*|n_groups_moe", 1),
    (r"index_topk|topk_tokens|index_block_.*", 5),
    (r"sliding_window|attention_window_size|local_attention|attention_chunk_size", 6),
    (r"codebook_size|num_codevectors_per_group|num_embeddings", 32),
    (r"chunk_size|mamba_chunk_size", 8),
]
WIDTHS = [
    (r"upsample_groups", WIDTH),
    (r"hidden_size|d_model|n_embd|embed_dim|hidden_dim|model_dim|dim|emb_dim|embedding_dim", WIDTH),
    (
        r"(text|vision|audio|image|encoder|decoder|out|output|cross|fusion|fpn|neck|mm|q|x)_hidden_(size|dim)",
        WIDTH,
    ),
    (
        r"(image_text|projector|projection|reassemble|bottleneck|mask|encoder|decoder)_(hidden_)?(size|dim|feature_size)",
        WIDTH,
    ),
    (
        r"projection_dim|embedding_size|output_dim|out_hidden_size|word_embed_proj_dim|lm_hidden_size",
        WIDTH,
    ),
    (
        r"condition_dim|(kv|v|q|qk|k)_channels|d_latents|d_embeds?|adapter_dim|hidden_size_global|emb_size",
        WIDTH,
    ),
    (
        r"(text|vision|audio|encoder|decoder|cross|kv|input)_?(embed|embedding|feature|model)_(dim|size)",
        WIDTH,
    ),
    (
        r"(cross_attention|mask_feature|feature|contrastive_embedding|vision_embed)_(size|dim)",
        WIDTH,
    ),
    (
        r"(en|de)coder_d_model|d_text|d_vision|kv_dim|q_dim|latent_size|lru_width|proj_dim|pooler_output_size",
        WIDTH,
    ),
    (
        r"intermediate_size|n_inner|(.*_)?intermediate_(size|dim)|mlp_dim|(.*_)?ffn_(dim|hidden_size)",
        2 * WIDTH,
    ),
    (
        r"d_ff|d_inner|dim_feedforward|mlp_hidden_size|encoder_ffn_dim|decoder_ffn_dim|ffn_hidden_size",
        2 * WIDTH,
    ),
    (
        r"(.*_)?num_(attention_)?heads|n_heads?|(.*_)?attention_heads|attn_heads|nhead|index_n_heads",
        HEADS,
    ),
    (
        r"num_(key_value|kv)_heads|n_head_kv|(.*_)?num_(key_value|kv)_heads|num_query_groups",
        KEY_HEADS,
    ),
    (
        r"head_dim|attention_head_dim|head_size|d_kv|d_head|attention_key_dim|kv_channels|dim_head",
        HEAD,
    ),
    (
        r"attention_head_size|(.*_)?attention_head_dim|(global_|swa_)?head_dim|index_head_dim|swa_v_head_dim",
        HEAD,
    ),
    (r"qk_rope_head_dim|qk_nope_head_dim|v_head_dim|swa_head_dim|global_v_head_dim", HEAD),
    (r"qk_head_dim", 2 * HEAD),
    (r"rotary_dim|rotary_ndims", HEAD // 2),
    (r"q_lora_rank|kv_lora_rank|o_lora_rank|.*_lora_rank|.*_low_rank_dim", HEAD),
    (r"linear_num_key_heads", KEY_HEADS),
    (r"linear_num_value_heads|linear_num_heads", HEADS),
    (r"linear_(key_|value_)?head_dim", HEAD),
    (r"mamba_n_heads|mamba_num_heads", 8),
    (r"mamba_d_head|mamba_head_dim", HEAD),
    (r"mamba_d_state|ssm_state_size|state_size|mamba_n_groups|n_groups|mamba_dt_rank", None),
    (r"query_pre_attn_scalar", HEAD),
    (r"hidden_size_per_layer_input|vocab_size_per_layer_input", HEAD),
    (r"num_mel_bins|num_mels|mel_dim|input_feat_per_channel", 16),
]
LISTS = [
    (r"hidden_sizes|embed_dims?|embed_dim_per_stage|encoder_hidden_sizes|dims", "widths"),
    (r"num_attention_heads|num_heads|num_attention_heads_per_stage", "heads"),
    (r"conv_dim", "narrow"),
]
STAGES = re.compile(r"depths|blocks_per_stage|num_hidden_blocks|stage_num_blocks|layers_per_block")
LEVELS = ("all", "plain", "depth")
TOKEN = re.compile(r".*_token_(id|index)|.*_(index|id)_token|.*token_id")
KNOWN_TOKENS = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}

# Fields that models need and configurations leave open.
UNSET = {
    "vocab_size": VOCABULARY,
    "num_experts_per_tok": 2,
    "num_key_value_heads": HEADS,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "image_token_index": VOCABULARY - 2,
    "head_dim": HEAD,
}


@dataclass
class Tokens:
    """Hands out the ids of special tokens: one for each name, from the end of the vocabulary."""

    given: dict

    def of(self, name, value):
        if name in KNOWN_TOKENS:
            return KNOWN_TOKENS[name]
        key = re.sub("_index$", "_id", name)
        return self.given.setdefault(key, VOCABULARY - 1 - len(self.given))


def small(kind, level="all"):
    """A small configuration of the class `kind`."""
    return _shrunk(kind(), level, Tokens({}))


def _shrunk(config, level, tokens):
    """The first of a few variants that the configuration accepts."""
    changes = _changes(config, level, tokens)
    changes |= _key_heads(config) if level != "depth" else {}
    if {"depths", "embed_dim"} <= changes.keys():
        changes.pop("hidden_size", None)  # follows from both
    changes |= FIELDS.get(config.model_type, {})
    changes = {name: value for name, value in changes.items() if value is not LEAVE}
    types = _layer_types(config, changes) if level == "all" else {}
    equal = _equal_heads(changes)
    variants = [changes | types, changes, changes | equal | types, changes | equal]
    variants.append({k: v for k, v in changes.items() if not re.fullmatch(r"num_.*layers", k)})
    for variant in variants[:-1]:
        try:
            return _with_stages(config, variant)
        except Exception:
            continue
    return _with_stages(config, variants[-1])


def _with_stages(config, fields):
    """A configuration with some fields, whose stages come out as those of the large one do."""
    made, out = type(config)(**fields), getattr(config, "out_features", None)
    names = getattr(made, "stage_names", [])[1:]
    if not out or not names or "out_features" in fields or "out_indices" in fields:
        return made
    kept = out if set(out) <= set(names) else names[-len(out) :]
    return type(config)(**fields, out_features=list(kept))


def _changes(config, level, tokens):
    changes = {}
    for name, value in config.to_dict().items():
        held = vars(config).get(name)
        if hasattr(held, "to_dict"):
            if held.model_type.startswith("timm"):
                continue
            changes[name] = _shrunk(held, level, tokens)
        elif name == "rope_parameters" and isinstance(value, dict) and level != "depth":
            changes |= _rope(name, value)
        else:
            changes |= zip([name], _field(name, value, level, tokens), strict=False)
    return changes


def _field(name, value, level, tokens):
    """The new value of one field, or nothing."""
    if value is None and name in UNSET and level != "depth":
        yield UNSET[name]
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int):
        if TOKEN.fullmatch(name):
            yield tokens.of(name, value)
        else:
            yield from _number(name, value, level)
    elif name in ("eos_token_id", "bos_token_id"):
        yield KNOWN_TOKENS[name]
    elif isinstance(value, list | tuple) and value and level != "depth":
        yield from _list(name, list(value), level)


def _number(name, value, level):
    if name in ("image_size", "input_size") and value >= 128:
        yield 64
        return
    tables = [DEPTHS, VOCABULARIES] if level == "depth" else [DEPTHS, VOCABULARIES, WIDTHS]
    for pattern, new in (rule for table in tables for rule in table):
        if re.fullmatch(pattern, name):
            if isinstance(new, int) and (value > new or new == HEADS) and value > 0:
                yield new
            return


def _list(name, value, level):
    if not all(isinstance(x, int) for x in value):
        return
    if name == "image_size" and min(value) >= 128:
        yield [64] * len(value)
    elif STAGES.fullmatch(name):
        yield [1] * len(value)
    elif level == "all":
        rules = [how for pattern, how in LISTS if re.fullmatch(pattern, name)]
        if rules:
            yield _scaled(value, rules[0])


def _scaled(value, how):
    if how == "widths":
        return [16 * 2 ** min(i, 2) for i in range(len(value))]
    if how == "heads":
        return [min(2**i, 4) for i in range(len(value))]
    return [32] * len(value)


def _rope(name, value):
    """Sections of rotary positions, which models of images have, follow the width of a head."""
    if "rope_type" not in value:
        return {}
    sections = value.get("mrope_section") or (2, 3, 3)
    pairs = int(HEAD * value.get("partial_rotary_factor", 1.0)) // 2
    scaled = [max(1, x * pairs // sum(sections)) for x in sections]
    scaled[-1] += pairs - sum(scaled)
    return {name: {**value, "mrope_section": scaled}}


def _key_heads(config):
    """As many key heads as heads, where the default has as many."""
    fields = config.to_dict()
    heads, key_heads = fields.get("num_attention_heads"), fields.get("num_key_value_heads")
    return {"num_key_value_heads": HEADS} if heads == key_heads and heads is not None else {}


def _equal_heads(changes):
    return {name: HEADS for name, new in changes.items() if re.search("(key_value|kv)_heads", name)}


def _layer_types(config, changes):
    """One layer of each kind, where a model has several kinds."""
    types = config.to_dict().get("layer_types")
    if not types or "num_hidden_layers" not in changes:
        return {}
    kinds = list(dict.fromkeys(types))
    kinds += kinds[: max(0, DEPTH - len(kinds))]
    return {"layer_types": kinds, "num_hidden_layers": len(kinds)}
