"""Inputs for any model of transformers, made from the signature of its forward and its configuration.

`feeds(model)` yields dictionaries to try, the fullest first; `fitted` gives the first that the model
takes, and mends the number of image tokens by what the model's own error says.
"""

import inspect
import itertools
import re

import torch

from tests.models.zoo.exceptions import INPUTS

BATCH, LENGTH, DECODER, FRAMES = 2, 12, 7, 4
TOKENS = (
    "input_ids",
    "attention_mask",
    "decoder_input_ids",
    "bbox",
    "pixel_values",
    "pixel_values_videos",
)
SOUNDS = "input_features", "input_values", "audio_values", "spectrogram"
SERIES = (
    "past_values",
    "past_time_features",
    "past_observed_mask",
    "future_values",
    "future_time_features",
    "states",
    "actions",
    "rewards",
    "returns_to_go",
    "timesteps",
    "visual_feats",
    "visual_pos",
    "flattened_patches",
)
LENGTHS = {"big_bird": 32, "bigbird_pegasus": 32, "longformer": 17, "led": 17, "funnel": 16}


def known(config, name, default=None):
    """The value of a field of the configuration or of the first part of it that has the field."""
    for part in _parts(config):
        value = vars(part).get(name)
        if value is not None:
            return value
    return default


def _parts(config):
    yield config
    for value in vars(config).values():
        if hasattr(value, "model_type"):
            yield from _parts(value)


def _size(config):
    size = known(config, "image_size", known(config, "input_size", 64))
    return tuple(size)[-2:] if isinstance(size, list | tuple) else (size, size)


def _images(config, grid=False):
    channels, (height, width) = known(config, "num_channels", 3), _size(config)
    if not isinstance(channels, int):
        channels = 3
    shape = (channels, height, width)
    frames = known(config, "num_frames", FRAMES)
    patch, time = known(config, "patch_size", 14), known(config, "temporal_patch_size", 1)
    if grid and isinstance(patch, int):
        yield torch.rand(32, channels * time * patch * patch)
        yield torch.rand(32, channels * 2 * patch * patch)
        yield torch.rand(32, channels, patch, patch)
    yield torch.rand(BATCH, *shape)
    yield torch.rand(BATCH, 1, *shape)
    yield torch.rand(BATCH, min(frames, 16), *shape)
    yield torch.rand(BATCH, channels, 128, 128)
    yield torch.rand(BATCH, channels, 224, 224)
    if isinstance(patch, int):
        yield torch.rand(BATCH, 16, channels * patch * patch)


def _ids(config, length):
    top = min(known(config, "vocab_size", 60) or 60, 60)
    return torch.randint(3, max(top, 4), (BATCH, length))


def _sounds(config):
    mel = known(config, "num_mel_bins", known(config, "feature_size", 16))
    frames = known(config, "max_source_positions", 64)
    yield torch.randn(BATCH, mel, 2 * frames)
    yield torch.randn(BATCH, 64, mel)
    yield torch.randn(BATCH, 4000)
    yield torch.randn(BATCH, 1, 4000)
    yield torch.randn(BATCH, mel, 64)
    yield torch.randn(BATCH, known(config, "max_length", 64), mel)
    yield torch.randn(BATCH, 1, 64, mel)
    yield torch.randn(BATCH, 1, 256, 64)


def _series(config):
    length, channels = known(config, "context_length", 32), known(config, "num_input_channels", 1)
    return torch.randn(BATCH, length, channels)


def _boxes(length):
    corner = torch.randint(0, 40, (BATCH, length, 2))
    return torch.cat([corner, corner + torch.randint(1, 40, corner.shape)], -1)


def _has_grid(names):
    return any("grid" in name for name in names)


def alternatives(name, config, length, *, grid):
    """Tensors to try for the argument `name`, the likeliest first."""
    patches = torch.tensor([[1, 4, 4]] * BATCH)
    simple = {
        "input_ids": lambda: [_ids(config, length)],
        "attention_mask": lambda: [torch.ones(BATCH, length, dtype=torch.long)],
        "decoder_input_ids": lambda: [_ids(config, DECODER)],
        "bbox": lambda: [_boxes(length)],
        "image_grid_thw": lambda: [patches],
        "grid_thw": lambda: [patches],
        "image_sizes": lambda: [torch.tensor([_size(config)] * BATCH)],
        "past_values": lambda: [torch.randn(BATCH, 26), _series(config)],
        "past_time_features": lambda: [torch.randn(BATCH, 26, 1)],
        "past_observed_mask": lambda: [torch.ones(BATCH, 26)],
        "future_values": lambda: [torch.randn(BATCH, 8)],
        "future_time_features": lambda: [torch.randn(BATCH, 8, 1)],
        "labels": lambda: [_ids(config, DECODER)],
        "input_points": lambda: [torch.rand(BATCH, 1, 2, 2) * 32],
        "pixel_values_videos": lambda: list(_images(config))[2:3],
        "states": lambda: [torch.randn(BATCH, length, known(config, "state_dim", 17))],
        "actions": lambda: [torch.randn(BATCH, length, known(config, "act_dim", 4))],
        "rewards": lambda: [torch.randn(BATCH, length, 1)],
        "returns_to_go": lambda: [torch.randn(BATCH, length, 1)],
        "timesteps": lambda: [torch.arange(length).expand(BATCH, length)],
        "timestep": lambda: [torch.rand(BATCH)],
        "xpath_tags_seq": lambda: [torch.zeros(BATCH, length, 50, dtype=torch.long)],
        "inputs": lambda: [_ids(config, length), *_images(config), *_sounds(config)],
        "inputs_embeds": lambda: [torch.randn(BATCH, length, known(config, "hidden_size", 64))],
        "hidden_states": lambda: [
            torch.randn(BATCH, length, known(config, "hidden_size", 64)),
            *_images(config, grid),
        ],
        "qformer_input_ids": lambda: [_ids(config, length)],
        "decoder_attention_mask": lambda: [torch.ones(BATCH, DECODER, dtype=torch.long)],
        "query_embeds": lambda: [torch.randn(BATCH, 8, known(config, "hidden_size", 64))],
        "encoder_hidden_states": lambda: [
            torch.randn(BATCH, 9, known(config, "encoder_hidden_size", 64))
        ],
    }
    if name in simple:
        return simple[name]()
    if "feature" in name and "mask" in name:
        return [
            torch.ones(BATCH, n, dtype=torch.bool)
            for n in (2 * known(config, "max_source_positions", 64), 64)
        ]
    if name == "visual_feats":
        return [torch.randn(BATCH, 5, known(config, "visual_feat_dim", 64))]
    if name == "flattened_patches":
        place = torch.arange(16)[:, None] // torch.tensor([4, 1]) % 4 + 1
        return [torch.cat([place.expand(BATCH, 16, 2), torch.rand(BATCH, 16, 768)], -1)]
    if name == "visual_pos":
        return [torch.rand(BATCH, 5, 4)]
    if ("pixel" in name and "mask" not in name) or name in ("image", "images"):
        return list(_images(config, grid))
    if name in SOUNDS or ("audio" in name and "mask" not in name):
        return list(_sounds(config))
    return []


def feeds(model, length=LENGTH):
    """Dictionaries of inputs to try, the fullest first."""
    config = model.config
    if config.model_type in INPUTS:
        yield INPUTS[config.model_type](config)
    length = LENGTHS.get(config.model_type, length)
    signature = inspect.signature(model.forward).parameters
    required = [
        n
        for n, p in signature.items()
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    main = getattr(model, "main_input_name", "input_ids")
    pair = (
        ["decoder_input_ids"]
        if getattr(config, "is_encoder_decoder", False) or "decoder_input_ids" in required
        else []
    )
    full = [
        n
        for n in (
            *TOKENS[:2],
            *pair,
            *TOKENS[3:],
            *SOUNDS,
            *SERIES,
            "image_grid_thw",
            "image_sizes",
        )
        if n in signature
    ]
    plain = [n for n in (main, *TOKENS[:2], *pair) if n in signature]
    least = [n for n in (main, *pair) if n in signature]
    if pair:
        full = [n for n in full if n != "pixel_values_videos"]
    seen = set()
    texts = [n for n in ("input_ids", "attention_mask", *pair) if n in signature]
    still = [n for n in full if n not in ("pixel_values_videos", "image_sizes")]
    quiet = [n for n in still if n not in SOUNDS]
    sized = [n for n in full if n not in ("pixel_values_videos", *SOUNDS)]
    given = ["encoder_hidden_states"] if "encoder_hidden_states" in signature else []
    for names in (still, quiet, sized, full, plain, least, texts, texts[:1] + pair, [], given):
        chosen = list(dict.fromkeys([*names, *required]))
        if "input_ids" not in chosen and "attention_mask" not in required:
            chosen = [n for n in chosen if n != "attention_mask"]
        if tuple(chosen) in seen:
            continue
        seen.add(tuple(chosen))
        options = [alternatives(n, config, length, grid=_has_grid(chosen)) for n in chosen]
        if not chosen or not all(options):
            continue
        for picked in itertools.islice(itertools.product(*options), 8):
            yield dict(zip(chosen, picked, strict=True))


def fitted(model, run, *, tries=24):
    """The first inputs that the model takes, or the last error.

    Args:
        model: a model of transformers.
        run: calls the model with inputs, and raises what it raises.
        tries: how many inputs to try.
    """
    torch.manual_seed(9)
    first = None
    for guess in itertools.islice(feeds(model), tries):
        inputs, error = _mended(model, guess, run)
        if error is None:
            return inputs
        first = first or error
    raise first or ValueError(
        "no inputs are known for " + ", ".join(inspect.signature(model.forward).parameters)
    )


def _mended(model, inputs, run):
    error = None
    for _ in range(5):
        inputs = _fitting(inputs)
        try:
            run(inputs)
            return inputs, None
        except Exception as raised:
            error, counts = (
                raised,
                re.search(r"tokens?:? ?(\d+).*?features?:? ?(\d+)", str(raised), re.S),
            )
        if "mm_token_type_ids" in str(error) and "mm_token_type_ids" not in inputs:
            inputs = _with_kinds(model.config, inputs)
            continue
        if counts is None or "input_ids" not in inputs:
            break
        tokens, features = int(counts[1]), int(counts[2])
        each = (
            features if tokens != features else features // known(model.config, "hidden_size", 64)
        )
        inputs = _with_tokens(model.config, inputs, str(error), each)
    return inputs, error


def _with_kinds(config, inputs):
    """The same inputs with a mark at image tokens."""
    token = known(config, "image_token_id", -1)
    kinds = (inputs["input_ids"] == token).long()
    return {**inputs, "mm_token_type_ids": kinds}


def _fitting(inputs):
    floating = torch.get_default_dtype()
    return {
        k: v.to(floating) if isinstance(v, torch.Tensor) and v.is_floating_point() else v
        for k, v in inputs.items()
    }


def _with_tokens(config, inputs, said, features):
    """The same text with as many image tokens as the model found features for."""
    kind = "video" if "video" in said.lower() else "audio" if "audio" in said.lower() else "image"
    token = known(config, f"{kind}_token_id", known(config, f"{kind}_token_index"))
    if token is None:
        return inputs
    each = max(1, features // BATCH)
    ids = inputs["input_ids"]
    ids = torch.cat([ids[:, :2], ids.new_full((BATCH, each), token), ids[:, -4:]], 1)
    inputs = {**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return _with_kinds(config, inputs) if "mm_token_type_ids" in inputs else inputs
