"""Small models of other libraries, each with one call: `SUBJECTS[name]()` gives model and call.

The name of a subject starts with the package that it needs.
"""

import importlib.util
from functools import partial

import torch
from torch import nn

BATCH, LENGTH, WIDTH, HEADS = 2, 10, 64, 4
SUBJECTS = {}


def subject(name, *options):
    """Enter a builder under `name`, or under `name option` for each of some options."""

    def enter(build):
        SUBJECTS.update({f"{name} {o}": partial(build, o) for o in options} or {name: build})
        return build

    return enter


def missing(name):
    """The package that a subject needs and that is not installed, or None."""
    package = PACKAGES.get(name.split()[0], name.split()[0])
    return None if importlib.util.find_spec(package) else package


PACKAGES = {
    "sentence-transformers": "sentence_transformers",
    "x-transformers": "x_transformers",
    "openai-whisper": "whisper",
    "fair-esm": "esm",
}


def _hidden(length=LENGTH, batch=BATCH):
    torch.manual_seed(9)
    return torch.randn(batch, length, WIDTH)


def _ids(length=LENGTH, top=60):
    torch.manual_seed(9)
    return torch.randint(3, top, (BATCH, length))


def _padding(length=LENGTH):
    mask = torch.zeros(BATCH, length, dtype=torch.bool)
    mask[0, length - 3 :] = True
    return mask


CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
MODES = {
    "weights": {},
    "heads": {"average_attn_weights": False},
    "sdpa": {"need_weights": False},
    "causal": {"attn_mask": CAUSAL, "is_causal": True, "need_weights": False},
    "causal weights": {"attn_mask": CAUSAL},
    "bias": {"attn_mask": "float", "need_weights": False},
    "bias weights": {"attn_mask": "float"},
}
LAYERS = {
    "first": {},
    "zero": {"add_zero_attn": True},
    "kv": {"add_bias_kv": True},
    "widths": {"kdim": 24, "vdim": 40},
}


@subject("torch MultiheadAttention", *MODES)
def _multihead(mode):
    model = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    x, options = _hidden(), dict(MODES[mode])
    if isinstance(options.get("attn_mask"), str):
        options["attn_mask"] = torch.randn(LENGTH, LENGTH)
    return model, lambda: model(x, x, x, **options)


@subject("torch MultiheadAttention", *(f"{a} {b}" for a in LAYERS for b in ("weights", "sdpa")))
def _multihead_layers(names):
    layer, mode = names.split()
    model = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **LAYERS[layer]).eval()
    widths = (LAYERS[layer].get(key, WIDTH) for key in ("kdim", "vdim"))
    x, (k, v) = _hidden(), (torch.randn(BATCH, 13, w) for w in widths)
    return model, lambda: model(x, k, v, **MODES[mode])


@subject("torch MultiheadAttention", "sequence first", "unbatched")
def _multihead_shapes(mode):
    model = nn.MultiheadAttention(WIDTH, HEADS).eval()
    x = _hidden()[0] if mode == "unbatched" else _hidden()
    return model, lambda: model(x, x, x, need_weights=False)


@subject("torch TransformerEncoder", "layer", "padded", "nested", "first norm")
def _encoder(mode):
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 2 * WIDTH, batch_first=True, norm_first=mode == "first norm"
    )
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=mode == "nested").eval()
    padding = _padding() if mode in ("padded", "nested") else None
    tokens = None if padding is None else ~padding
    return model, lambda: model(_hidden(), src_key_padding_mask=padding), tokens


@subject("torch TransformerDecoder", "plain", "causal")
def _decoder(mode):
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True)
    model, memory = nn.TransformerDecoder(layer, 2).eval(), _hidden(13)
    mask = CAUSAL if mode == "causal" else None
    return model, lambda: model(_hidden(), memory, tgt_mask=mask)


@subject("torch Transformer")
def _transformer():
    model = nn.Transformer(WIDTH, HEADS, 2, 2, 2 * WIDTH, batch_first=True).eval()
    return model, lambda: model(_hidden(13), _hidden(), tgt_mask=CAUSAL, tgt_is_causal=True)


TIMM = {
    "vit_tiny_patch16_224": {"img_size": 64, "depth": 2},
    "deit3_small_patch16_224": {"img_size": 64, "depth": 2},
    "beit_base_patch16_224": {"img_size": 64, "depth": 2, "embed_dim": 64, "num_heads": 4},
    "eva02_tiny_patch14_224": {"img_size": 56, "depth": 2},
    "vit_base_patch16_siglip_224": {"img_size": 64, "depth": 2, "embed_dim": 64, "num_heads": 4},
    "swin_tiny_patch4_window7_224": {"depths": (1, 2, 1, 1), "embed_dim": 24, "img_size": 224},
    "swinv2_tiny_window8_256": {"depths": (1, 2, 1, 1), "embed_dim": 24, "img_size": 256},
    "xcit_nano_12_p16_224": {"depth": 2},
    "cait_xxs24_224": {"depth": 2},
    "levit_128s": {},
    "mvitv2_tiny": {},
    "maxvit_rmlp_pico_rw_256": {},
    "coatnet_pico_rw_224": {},
    "hiera_tiny_224": {},
    "volo_d1_224": {},
    "twins_pcpvt_small": {},
    "pvt_v2_b0": {},
    "efficientformer_l1": {},
    "davit_tiny": {},
    "gcvit_xxtiny": {},
    "nest_tiny": {},
    "crossvit_tiny_240": {},
    "tnt_s_patch16_224": {"depth": 2},
    "pit_ti_224": {},
    "visformer_tiny": {},
    "edgenext_xx_small": {},
    "mobilevit_xxs": {},
    "convit_tiny": {"depth": 2},
    "focalnet_tiny_srf": {},
    "resnet18": {},
}


@subject("timm", *TIMM)
def _timm(name):
    torchvision_operators()
    import timm

    model = timm.create_model(name, pretrained=False, **TIMM[name]).eval()
    size = TIMM[name].get("img_size") or model.default_cfg["input_size"][-1]
    images = torch.rand(1, 3, size, size)
    return model, lambda: model(images)


def torchvision_operators():
    """Schemas of torchvision's operators, which its wheels of CUDA do not give to a CPU torch."""
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        torch.ops.torchvision.nms  # noqa: B018
    except AttributeError:
        global _LIBRARY  # noqa: PLW0603
        _LIBRARY = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


@subject("torchvision", "vit", "swin", "swin_v2", "maxvit")
def _torchvision(name):
    torchvision_operators()
    from torchvision.models import maxvit, swin_transformer, vision_transformer

    if name == "vit":
        model = vision_transformer.VisionTransformer(64, 16, 2, HEADS, WIDTH, 2 * WIDTH)
        return model.eval(), lambda: model(torch.ones(BATCH, 3, 64, 64) * _ramp(64))
    if name == "maxvit":
        model = maxvit.maxvit_t(input_size=(224, 224)).eval()
        return model, lambda: model(_ramp(224).expand(1, 3, 224, 224))
    build = swin_transformer.swin_t if name == "swin" else swin_transformer.swin_v2_t
    model = build().eval()
    return model, lambda: model(_ramp(96).expand(1, 3, 96, 96))


def _ramp(size):
    torch.manual_seed(9)
    return torch.rand(1, 1, size, size)


@subject("diffusers", "UNet2DConditionModel", "UNet2DModel", "DiTTransformer2DModel")
def _diffusers(name):
    import diffusers

    blocks = {"block_out_channels": (32, 64), "layers_per_block": 1, "sample_size": 16}
    if name == "UNet2DConditionModel":
        down = ("CrossAttnDownBlock2D", "DownBlock2D")
        up = ("UpBlock2D", "CrossAttnUpBlock2D")
        model = diffusers.UNet2DConditionModel(
            **blocks, cross_attention_dim=WIDTH, down_block_types=down, up_block_types=up
        ).eval()
        sample = torch.randn(BATCH, 4, 16, 16)
        return model, lambda: model(sample, 3, _hidden())
    if name == "UNet2DModel":
        down, up = ("DownBlock2D", "AttnDownBlock2D"), ("AttnUpBlock2D", "UpBlock2D")
        model = diffusers.UNet2DModel(**blocks, down_block_types=down, up_block_types=up).eval()
        sample = torch.randn(BATCH, 3, 16, 16)
        return model, lambda: model(sample, 3)
    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=HEADS, attention_head_dim=16, num_layers=2, sample_size=16
    ).eval()
    steps, labels = torch.tensor([3, 5]), torch.tensor([1, 2])
    sample = torch.randn(BATCH, 4, 16, 16)
    return model, lambda: model(sample, timestep=steps, class_labels=labels)


@subject("diffusers", "SD3Transformer2DModel", "FluxTransformer2DModel", "AutoencoderKL")
def _diffusers_joint(name):
    import diffusers

    shape = {"num_attention_heads": HEADS, "attention_head_dim": 16}
    pooled, text = torch.randn(BATCH, WIDTH), _hidden()
    if name == "SD3Transformer2DModel":
        model = diffusers.SD3Transformer2DModel(
            **shape, sample_size=16, num_layers=2, in_channels=4, out_channels=4,
            joint_attention_dim=WIDTH, caption_projection_dim=WIDTH, pooled_projection_dim=WIDTH,
        ).eval()  # fmt: skip
        sample = torch.randn(BATCH, 4, 16, 16)
        return model, lambda: model(sample, text, pooled, torch.tensor([3, 5]))
    if name == "AutoencoderKL":
        model = diffusers.AutoencoderKL(block_out_channels=(32,), sample_size=16).eval()
        return model, lambda: model(torch.ones(BATCH, 3, 16, 16) * _ramp(16))
    model = diffusers.FluxTransformer2DModel(
        **shape, in_channels=4, num_layers=1, num_single_layers=1, axes_dims_rope=(4, 4, 8),
        joint_attention_dim=WIDTH, pooled_projection_dim=WIDTH,
    ).eval()  # fmt: skip
    options = {"txt_ids": torch.zeros(LENGTH, 3), "img_ids": torch.rand(16, 3)}
    sample, step = torch.randn(BATCH, 16, 4), torch.tensor([0.3, 0.5])
    return model, lambda: model(
        sample, encoder_hidden_states=text, pooled_projections=pooled, timestep=step, **options
    )


X_OPTIONS = {
    "plain": {},
    "flash": {"attn_flash": True},
    "rotary": {"rotary_pos_emb": True},
    "alibi": {"alibi_pos_bias": True},
    "sparse top-k": {"attn_sparse_topk": 3},
    "talking heads": {"attn_pre_talking_heads": True},
    "one key head": {"attn_one_kv_head": True},
    "memory": {"attn_num_mem_kv": 3},
    "qk norm": {"attn_qk_norm": True},
    "softclamp": {"attn_softclamp_logits": True},
}


@subject("x-transformers", *X_OPTIONS)
def _x_transformers(name):
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=WIDTH, depth=2, heads=HEADS, attn_dim_head=16, **X_OPTIONS[name])
    model = TransformerWrapper(num_tokens=97, max_seq_len=32, attn_layers=layers).eval()
    return model, lambda: model(_ids())


@subject("x-transformers", "encoder decoder")
def _x_pair(_):
    from x_transformers import XTransformer

    shape = {"num_tokens": 97, "depth": 2, "heads": HEADS, "max_seq_len": 32}
    options = {f"{part}_{key}": value for part in ("enc", "dec") for key, value in shape.items()}
    model = XTransformer(dim=WIDTH, **options).eval()
    return model, lambda: model(_ids(13), _ids())


@subject("open_clip")
def _open_clip():
    torchvision_operators()
    from open_clip.model import CLIP

    vision = {"layers": 2, "width": WIDTH, "head_width": 16, "patch_size": 16, "image_size": 64}
    text = {"layers": 2, "width": WIDTH, "heads": HEADS, "context_length": LENGTH, "vocab_size": 97}
    model = CLIP(WIDTH, vision, text).eval()
    return model, lambda: model(torch.ones(BATCH, 3, 64, 64) * _ramp(64), _ids())


@subject("openai-whisper")
def _whisper():
    from whisper.model import ModelDimensions, Whisper

    model = Whisper(ModelDimensions(16, 32, WIDTH, HEADS, 2, 97, 32, WIDTH, HEADS, 2)).eval()
    sounds = torch.randn(BATCH, 16, 64)
    return model, lambda: model(sounds, _ids())


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=97, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=2,
            num_attention_heads=HEADS, num_key_value_heads=2, max_position_embeddings=64,
            pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    ).eval()  # fmt: skip


@subject("peft", "LoRA", "prefix tuning")
def _peft(name):
    torchvision_operators()
    import peft

    config = (
        peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=4, task_type="CAUSAL_LM")
        if name == "LoRA"
        else peft.PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    )
    model = peft.get_peft_model(llama(), config).eval()
    return model, lambda: model(input_ids=_ids(), attention_mask=torch.ones(BATCH, LENGTH)).logits


@subject("torchao", "int8 weights")
def _torchao(_):
    torchvision_operators()
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = llama().float()
    quantize_(model, Int8WeightOnlyConfig())
    return model, lambda: model(input_ids=_ids()).logits


@subject("sentence-transformers")
def _sentence_transformers():
    torchvision_operators()
    from sentence_transformers import models
    from transformers import BertConfig, BertModel

    shape = {"num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": 2 * WIDTH}
    bert = BertModel(BertConfig(vocab_size=97, hidden_size=WIDTH, **shape)).eval()
    pooling = models.Pooling(WIDTH)

    class Sentences(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.pooling = bert, pooling

        def forward(self, input_ids, attention_mask):
            tokens = self.encoder(input_ids, attention_mask).last_hidden_state
            found = {"token_embeddings": tokens, "attention_mask": attention_mask}
            return self.pooling(found)["sentence_embedding"]

    model = Sentences().eval()
    return model, lambda: model(_ids(), torch.ones(BATCH, LENGTH, dtype=torch.long))


@subject("chronos", "bolt")
def _chronos(_):
    torchvision_operators()
    from chronos.chronos_bolt import ChronosBoltModelForForecasting
    from transformers import T5Config

    settings = {
        "context_length": 64, "prediction_length": 8, "input_patch_size": 8,
        "input_patch_stride": 8, "quantiles": [0.1, 0.5, 0.9], "use_reg_token": True,
    }  # fmt: skip
    config = T5Config(
        d_model=WIDTH, d_kv=16, d_ff=2 * WIDTH, num_layers=2, num_heads=HEADS, vocab_size=2,
        pad_token_id=0, decoder_start_token_id=0, is_encoder_decoder=True,
    )  # fmt: skip
    config.chronos_config = settings
    model = ChronosBoltModelForForecasting(config).eval()
    return model, lambda: model(context=torch.sin(torch.arange(128.0).reshape(BATCH, 64)))


@subject("fair-esm", "ESM-1b", "ESM-2")
def _esm(name):
    from argparse import Namespace

    from esm.data import Alphabet
    from esm.model.esm1 import ProteinBertModel
    from esm.model.esm2 import ESM2

    if name == "ESM-2":
        model = ESM2(num_layers=2, embed_dim=WIDTH, attention_heads=HEADS).eval()
    else:
        shape = Namespace(
            layers=2, embed_dim=WIDTH, ffn_embed_dim=2 * WIDTH, attention_heads=HEADS,
            arch="roberta_large", max_positions=64, token_dropout=True, emb_layer_norm_before=True,
            final_bias=True, dropout=0.0,
        )  # fmt: skip
        model = ProteinBertModel(shape, Alphabet.from_architecture("ESM-1b")).eval()
    return model, lambda: model(_ids(top=24))["logits"]
