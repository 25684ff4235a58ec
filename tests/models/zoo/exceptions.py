"""What names do not tell of an architecture: fields that must agree with others, and inputs."""

import torch

LEAVE = object()  # the field stays as it is
INDEXER = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 4,
    "indexer_compress_ratio": 2,
}
SERIES = {
    "prediction_length": 8,
    "context_length": 24,
    "num_time_features": 1,
    "lags_sequence": [1, 2],
}
DEPTH = {
    "backbone_config": {
        "model_type": "dinov2",
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "image_size": 56,
        "out_indices": [1, 2, 3, 4],
        "reshape_hidden_states": False,
    },
    "reassemble_hidden_size": 64,
    "neck_hidden_sizes": [16, 32, 64, 64],
    "fusion_hidden_size": 32,
}
STAGES = {"encoder_in_channels": [32, 64, 64], "decoder_in_channels": [64, 64, 64]}
START = {"vision_start_token_id": 120, "audio_start_token_id": 119}
# Classes that stand for an architecture whose first ones take parts of its configuration.
CLASSES = {
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
}
# Fields of configurations, by the type of the model.
FIELDS = {
    "informer": SERIES,
    "autoformer": SERIES,
    "time_series_transformer": SERIES,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 5},
    "big_bird": {"block_size": 4, "num_random_blocks": 1},
    "bigbird_pegasus": {"block_size": 4, "num_random_blocks": 1},
    "swin": {"window_size": 2},
    "donut-swin": {"window_size": 2},
    "maskformer-swin": {"window_size": 2},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
    },
    "esm": {"pad_token_id": 0, "mask_token_id": 3},
    "bamba": {"attn_layer_indices": [1]},
    "chameleon": {"vocabulary_map": {"<image>": 126}},
    "emu3": {"vocabulary_map": {"<image>": 126}},
    "decision_transformer": {"hidden_size": 64, "n_inner": 128},
    "longformer": {"attention_window": 4},
    "led": {"attention_window": 4},
    "muse_spark_audio": {"num_hidden_layers": 4},
    "molmo2_adapter": {"vision_feature_layer": [-1, -2]},
    "mamba2": {"num_heads": 8, "head_dim": 16},
    "glm5_next_text": {"index_topk": 4, "index_kpool": 2},
    "mistral4": {"head_dim": 32},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "intermediate_size": 128,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "qwen4_exp_text": INDEXER,
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}
    },
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8}},
    "blt": {"encoder_hash_byte_group_vocab": 64},
    "step3p5": {"sliding_window": 6},
    "lw_detr": {"projector_scale_factors": [1.0]},
    "align": {"projection_dim": LEAVE},
    "align_vision_model": {
        "hidden_dim": LEAVE,
        "depth_coefficient": 1.0,
        "num_block_repeats": [1] * 7,
    },
    "vitpose_backbone": {"image_size": [64, 48], "part_features": 16, "num_experts": 1},
    "hgnet_v2": {
        "stem_channels": [3, 16, 16],
        "stage_in_channels": [16, 16, 32, 64],
        "stage_mid_channels": [8, 8, 16, 16],
        "stage_out_channels": [16, 32, 64, 64],
        "stage_numb_of_layers": [1] * 4,
    },
    "rt_detr": STAGES,
    "rt_detr_v2": STAGES,
    "d_fine": STAGES,
    "deimv2": STAGES,
    "pp_doclayout_v2": STAGES,
    "pp_doclayout_v3": STAGES,
    "pp_doclayout_v4": STAGES,
    "pvt": {"num_encoder_blocks": LEAVE},
    "vitmatte": {"fusion_hidden_sizes": [16, 32, 64, 64]},
    "t5gemma2_text": {"dropout_rate": 0.0},
    "qwen2_5_omni_thinker": START,
    "qwen3_omni_moe_thinker": START,
    "ernie4_5_vl_moe_text": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [3, 3, 2],
        }
    },
    "sam2_hiera_det_model": {
        "hidden_size": 16,
        "image_size": [128, 128],
        "embed_dim_per_stage": [16, 32, 64, 128],
        "num_attention_heads_per_stage": [1, 2, 4, 8],
        "blocks_per_stage": [1, 2, 3, 2],
        "window_size_per_stage": [8, 4, 8, 4],
        "global_attention_blocks": [4],
    },
    "sam2_vision_model": {
        "backbone_channel_list": [128, 64, 32, 16],
        "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
    },
    "seggpt": {
        "image_size": [128, 64],
        "pretrain_image_size": 64,
        "intermediate_hidden_state_indices": [0, 1],
        "merge_index": 0,
        "decoder_hidden_size": 16,
    },
    "perception_lm": {
        "projector_pooling_ratio": 1,
        "vision_config": {
            "model_type": "timm_wrapper",
            "architecture": "vit_pe_core_large_patch14_336",
            "model_args": {
                "embed_dim": 64,
                "img_size": (28, 28),
                "depth": 2,
                "num_heads": 4,
                "global_pool": "",
                "use_post_transformer_norm": False,
                "init_values": 0.1,
                "ref_feat_shape": (2, 2),
            },
        },
    },
    "moonshine_streaming": {"num_key_value_heads": 4},
    "instructblipvideo": {"video_token_index": 125},
    "janus_vqgan": {"base_channels": 32},
    "emu3_vqgan": {"base_channels": 32},
    "depth_anything": DEPTH,
    "prompt_depth_anything": DEPTH,
    "tvp": {"max_img_size": 64, "visual_prompt_size": 8, "num_frames": 2},
    "sam2_prompt_encoder": {"image_size": 128},
    "superpoint": {"descriptor_decoder_dim": 64},
    "paligemma": {
        "text_config": {
            "model_type": "gemma",
            "vocab_size": 128,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 16,
        }
    },
}


def ids(*shape, top=60):
    return torch.randint(3, top, shape)


def patches(config, height=4, width=4):
    """An image [B,N,C] as the patches of its pixels."""
    size, channels = config.patch_size, getattr(config, "num_channels", 3)
    return torch.rand(2, height * width, channels * size * size)


def _siglip2(config):
    vision = getattr(config, "vision_config", config)
    images = {
        "pixel_values": patches(vision),
        "pixel_attention_mask": torch.ones(2, 16, dtype=torch.long),
        "spatial_shapes": torch.tensor([[4, 4]] * 2),
    }
    return images if vision is config else {"input_ids": ids(2, 12), **images}


def _gemma4_vision(config):
    place = torch.arange(36)
    grid = torch.stack([place % 6, place // 6], -1).expand(2, 36, 2)
    return {"pixel_values": patches(config, 6, 6), "pixel_position_ids": grid}


def _idefics(config):
    size = config.vision_config.image_size
    return {
        "input_ids": ids(2, 12),
        "attention_mask": torch.ones(2, 12, dtype=torch.long),
        "pixel_values": torch.rand(2, 1, 3, size, size),
        "image_attention_mask": torch.ones(2, 12, 1, dtype=torch.long),
    }


def _kosmos(config):
    size, count = config.vision_config.image_size, config.latent_query_num
    place = torch.zeros(2, count + 6, dtype=torch.long)
    place[:, 2 : count + 2] = 1
    return {
        "pixel_values": torch.rand(2, 3, size, size),
        "input_ids": ids(2, count + 6),
        "image_embeds_position_mask": place,
    }


def _features(config):
    """Sounds [B,mel,N] with a mask of all."""
    frames = 2 * config.max_source_positions
    return {
        "input_features": torch.randn(2, config.num_mel_bins, frames),
        "input_features_mask": torch.ones(2, frames, dtype=torch.long),
    }


def _heard(config):
    """A text with sounds; tokens for them are added where the model asks for them."""
    return {
        "input_ids": ids(2, 12),
        "attention_mask": torch.ones(2, 12, dtype=torch.long),
        "input_features": torch.randn(2, config.audio_config.num_mel_bins, 64),
        "feature_attention_mask": torch.ones(2, 64, dtype=torch.long),
    }


def _patched(config):
    """Patches of two images side by side, [1,C,P,N*P]."""
    size = config.patch_size
    return {
        "pixel_values": torch.rand(1, 3, size, 2 * 16 * size),
        "target_sizes": torch.tensor([[4, 4]] * 2),
    }


def _paligemma(config):
    """As many image tokens as there are patches, before a text."""
    images = torch.full((2, 16), config.image_token_id)
    tokens = torch.cat([images, ids(2, 6)], 1)
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "token_type_ids": torch.zeros_like(tokens),
        "pixel_values": torch.rand(2, 3, 64, 64),
    }


def _perception(config):
    tokens = torch.cat([torch.full((2, 4), config.image_token_id), ids(2, 6)], 1)
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "pixel_values": torch.rand(2, 1, 3, 28, 28),
    }


def _glm4v(config):
    width = config.in_channels * config.temporal_patch_size * config.patch_size**2
    return {"hidden_states": torch.rand(32, width), "grid_thw": torch.tensor([[1, 4, 4]] * 2)}


def _sam2(config):
    return {"pixel_values": torch.rand(1, 3, 128, 128), "input_points": torch.rand(1, 1, 2, 2) * 99}


# Inputs, by the type of the model: functions of its configuration.
INPUTS = {
    "dia": lambda config: {
        "input_ids": ids(2, 12),
        "decoder_input_ids": ids(2, 7, config.decoder_config.num_channels),
    },
    "kyutai_speech_to_text": lambda config: {"input_ids": ids(2, 12, config.num_codebooks + 1)},
    "musicgen": lambda config: {"input_ids": ids(2, 12), "decoder_input_ids": ids(8, 7)},
    "musicgen_melody": lambda config: {"input_ids": ids(2, 12), "decoder_input_ids": ids(8, 7)},
    "siglip2": _siglip2,
    "siglip2_vision_model": _siglip2,
    "gemma4_vision": _gemma4_vision,
    "idefics": _idefics,
    "kosmos-2": _kosmos,
    "audioflamingo3_encoder": _features,
    "mimi_decoder": lambda config: {"latents": torch.randn(2, config.hidden_size, 6)},
    "pocket_tts_audio_tokenizer_decoder": lambda config: {
        "latents": torch.randn(2, config.hidden_size, 6)
    },
    "muse_glimmer_assistant": lambda config: {
        "noise_embeds": torch.randn(2, 4, config.hidden_size),
        "context_hidden_states": torch.randn(
            2, 9, config.hidden_size * len(config.target_layer_ids)
        ),
    },
    "gemma3n_audio": lambda config: {
        "audio_mel": torch.randn(2, 48, config.input_feat_size),
        "audio_mel_mask": torch.zeros(2, 48, dtype=torch.bool),
    },
    "blt": lambda config: {"input_ids": ids(2, 12), "use_cache": False},
    "voxtral_realtime_text": lambda config: {
        "input_ids": ids(2, 12),
        "t_cond": torch.randn(1, 1, config.hidden_size),
    },
    "speech-encoder-decoder": lambda config: {
        "input_values": torch.randn(2, 4000),
        "decoder_input_ids": ids(2, 7),
    },
    "muse_spark_audio": lambda config: {"input_values": torch.randn(2, 3840)},
    "qwen3_asr_encoder": lambda config: {
        "input_features": torch.randn(2, config.num_mel_bins, 200),
        "input_features_mask": torch.ones(2, 200, dtype=torch.long),
    },
    "qwen2_5_omni_thinker": _heard,
    "qwen3_omni_moe_thinker": _heard,
    "minicpm_ocr_vision": _patched,
    "minicpmv4_7_vision": _patched,
    "superglue": lambda config: {"pixel_values": torch.rand(1, 2, 3, 64, 64)},
    "paligemma": _paligemma,
    "perception_lm": _perception,
    "sam2": _sam2,
    "sam2_vision_model": lambda config: {"pixel_values": torch.rand(1, 3, 128, 128)},
    "sam2_hiera_det_model": lambda config: {"pixel_values": torch.rand(1, 3, 128, 128)},
    "seggpt": lambda config: {
        name: torch.rand(2, 3, 64, 64)
        for name in ("pixel_values", "prompt_pixel_values", "prompt_masks")
    },
    "wav2vec2-bert": lambda config: {
        "input_features": torch.randn(2, 32, config.feature_projection_input_dim)
    },
    "vivit": lambda config: {
        "pixel_values": torch.rand(1, config.num_frames, 3, *[config.image_size] * 2)
    },
    "xmod": lambda config: {
        "input_ids": ids(2, 12),
        "lang_ids": torch.zeros(2, dtype=torch.long),
    },
    "video_llama_3_vision": lambda config: {
        "pixel_values": torch.rand(32, 3 * config.patch_size**2),
        "grid_thw": torch.tensor([[1, 4, 4]] * 2),
        "merge_sizes": torch.tensor([1, 1]),
    },
    "glm4v_vision": _glm4v,
    "glm4v_moe_vision": _glm4v,
    "lightglue": lambda config: {"pixel_values": torch.rand(2, 2, 3, 64, 64)},
    "efficientloftr": lambda config: {"pixel_values": torch.rand(1, 2, 1, 64, 64)},
    "instructblipvideo": lambda config: {
        "pixel_values": torch.rand(2, 4, 3, *[config.vision_config.image_size] * 2),
        "qformer_input_ids": ids(2, 12),
        "input_ids": torch.cat([torch.full((2, 4 * 8), config.video_token_index), ids(2, 4)], 1),
    },
}
