import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPConfig, CLIPModel, ViTConfig, ViTModel

from attentropy.core.errors import UnsupportedError
from attentropy.scans.errors import ScanError
from attentropy.scans.texts.pictures import drawn, of_picture, opened, tower_of
from attentropy.scans.texts.view import view_of
from tests.scans.small_llama import llama

SIZES = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
}


def vit():
    torch.manual_seed(0)
    model = ViTModel(ViTConfig(**SIZES)).eval()
    for name, value in model.named_parameters():
        if "query" in name or "key" in name or "q_proj" in name or "k_proj" in name:
            torch.nn.init.normal_(value, std=0.4)
    return model


def clip():
    torch.manual_seed(0)
    text = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text |= {"intermediate_size": 32, "vocab_size": 99, "bos_token_id": 1, "eos_token_id": 2}
    return CLIPModel(CLIPConfig(vision_config=SIZES, text_config=text)).eval()


def test_patches_against_eager_weights():
    model = vit()
    reading = of_picture(model)
    view = view_of(reading)
    assert view.picture[1:] == (4, 4, 1)
    assert view.labels[:3] == ["[class]", "row 1, column 1", "row 1, column 2"]
    assert len(view.labels) == 17
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = reading.run(output_attentions=True).attentions
    for layer, found in enumerate(maps):
        p = found[0].double()
        close = {"atol": 1e-5, "rtol": 1e-5}
        got = view.rows[layer]
        torch.testing.assert_close(got["entropy"].double(), torch.special.entr(p).sum(-1), **close)
        torch.testing.assert_close(got["received"].double(), p.sum(1), **close)
        look = view.looks[layer]
        torch.testing.assert_close(look.weights.double(), p.topk(16, -1).values, **close)


def test_the_vision_part_of_clip_reads():
    model = clip()
    assert tower_of(model) is model.vision_model
    view = view_of(of_picture(model))
    assert [row.heads for row in view.layers] == [4, 4]
    assert view.surprise is None


def test_a_file_is_scaled_and_cut_to_what_the_model_sees(tmp_path):
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[:, :20], pixels[:, 60:] = 255, 255  # the outer quarters are cut off
    path = tmp_path / "wide.png"
    Image.fromarray(pixels).save(path)
    found = opened(path, 32)
    assert found.shape == (32, 32, 3)
    assert found[:, 2:-2].max() == 0
    reading = of_picture(vit(), path)
    again = np.array(Image.open(io.BytesIO(reading.picture.png)))
    assert (again == found).all()


def test_pixels_are_normalised_as_the_processor_says(tmp_path):
    settings = tmp_path / "preprocessor_config.json"
    settings.write_text(json.dumps({"image_mean": [0.1, 0.2, 0.3], "image_std": [1, 2, 4]}))
    seen = []
    model = vit()
    model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["pixel_values"]), with_kwargs=True
    )
    of_picture(model, settings=settings)
    plain = torch.from_numpy(drawn(32)).permute(2, 0, 1).double() / 255
    mean, deviation = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1.0, 2.0, 4.0])
    wanted = (plain - mean.view(3, 1, 1)) / deviation.view(3, 1, 1)
    torch.testing.assert_close(seen[0][0].double(), wanted, atol=1e-6, rtol=1e-6)


def test_mistakes_are_named(tmp_path):
    with pytest.raises(ScanError, match="image: LlamaForCausalLM reads no pictures"):
        of_picture(llama())
    with pytest.raises(ScanError, match="does not exist"):
        of_picture(vit(), tmp_path / "absent.png")
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(ScanError, match="is not a picture that can be read"):
        of_picture(vit(), tmp_path / "text.png")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ScanError, match="is not JSON"):
        of_picture(vit(), settings=tmp_path / "bad.json")
    bare = torch.nn.Linear(2, 2)
    bare.main_input_name = "pixel_values"
    with pytest.raises(UnsupportedError, match="Linear is not a vision transformer with square"):
        of_picture(bare)
