import json

import pytest
import torch
from transformers import AutoModelForCausalLM

import attentropy as at
from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.extensions.export import (
    check_exportable,
    compare,
    export,
    query_rows,
    why_no_factors,
)
from attentropy.models.rope import settings
from tests.extensions import small_models
from tests.scans.tiny import make

MODELS = ("grouped_llama", "qwen2", "gpt_neox", "phi3")
IDS = torch.arange(120)[None] * 11 % 97


def plan_for(model, *, rope=None, factors=None):
    """A plan with another factor for every head of every layer."""
    with torch.no_grad(), at.watch(model) as seen:
        model(IDS[:, :8])
    names = dict.fromkeys(row.layer for row in seen.heads())
    own = {
        name: tuple((1.0 + 0.05 * (3 * i + head),) for head in range(6))
        for i, name in enumerate(names)
    }
    return at.Plan(
        model=type(model).__name__,
        reference=64,
        hold=None,
        method=None,
        lengths=(64,),
        factors=own if factors is None else factors,
        entropy={},
        spread={},
        rope=rope,
    )


def logits(model, plan=None):
    handle = None if plan is None else at.steer(model, plan)
    try:
        return model(IDS).logits
    finally:
        if handle is not None:
            handle.undo()


def test_factors_of_a_model_in_double_precision_are_exact(tmp_path):
    model = small_models.grouped_llama().double()
    export(model, plan_for(model), tmp_path / "out")
    assert compare(model, plan_for(model), tmp_path / "out") < 1e-12


@pytest.mark.parametrize("name", MODELS)
def test_stock_transformers_gives_the_logits_of_the_steered_model(name, tmp_path):
    model = getattr(small_models, name)()
    plan = plan_for(model, rope=settings.yarn(trained=64, to=128))
    plain, steered = logits(model), logits(model, plan)
    export(model, plan, tmp_path / "out")
    written = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    error = (logits(written) - steered).abs().max() / steered.abs().max()
    assert error < 1e-4
    assert (plain - steered).abs().max() / steered.abs().max() > 1e-2
    assert torch.equal(logits(model), plain), "the model is as before"


@pytest.mark.parametrize(
    "rope",
    [
        settings.linear(trained=64, to=128),
        settings.ntk(trained=64, to=128, theta=1e4, width=8),
        settings.dynamic(trained=64),
        settings.llama3(trained=64, to=128),
        settings.bands([1, 1.2, 1.7, 2], trained=64, to=128, attention_factor=1.07),
        None,
    ],
    ids=lambda rope: "none" if rope is None else rope.rope_type,
)
def test_every_kind_of_positions_is_exported(rope, tmp_path):
    model = small_models.grouped_llama()
    plan = plan_for(model, rope=rope, factors={})
    export(model, plan, tmp_path)
    written = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(logits(written), logits(model, plan), rtol=1e-4, atol=1e-4)


def test_the_folder_is_an_ordinary_one(tmp_path):
    model = small_models.qwen2()
    export(model, plan_for(model, rope=settings.yarn(trained=64, to=128)), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["max_position_embeddings"] == 128
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    rope = config["rope_parameters"]
    assert (rope["rope_type"], rope["factor"]) == ("yarn", 2.0)
    assert rope["original_max_position_embeddings"] == 64
    assert rope["attention_factor"] == pytest.approx(1.0693147)
    assert "attentropy" not in (tmp_path / "config.json").read_text()
    assert (tmp_path / "model.safetensors").exists()


def test_factors_that_depend_on_the_row_are_refused():
    model = small_models.grouped_llama()
    layer = "model.layers.0.self_attn"
    plan = at.Plan(
        model="x", reference=64, hold=None, method=None, lengths=(64, 128),
        factors={layer: ((1.0, 1.2),) * 6}, entropy={}, spread={},
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match="grow with the row and cannot be exported"):
        check_exportable(model, plan)
    clipped = plan_for(model, rope=settings.clipped(trained=64, to=128), factors={})
    with pytest.raises(UnsupportedError, match="clipped positions cannot be exported"):
        check_exportable(model, clipped)


def test_models_that_hold_no_factors_are_refused():
    model = small_models.qwen3()
    with pytest.raises(UnsupportedError, match="Qwen3Attention has no query projection whose"):
        check_exportable(model, plan_for(model))
    with pytest.raises(UnsupportedError, match="only models of transformers are exported, not Ti"):
        check_exportable(make())
    layers = [f"model.layers.{i}.self_attn" for i in range(2)]
    assert "Qwen3Attention has no query projection" in why_no_factors(model, layers)
    assert why_no_factors(small_models.grouped_llama(), layers) is None


def test_a_folder_with_something_in_it_is_refused(tmp_path):
    (tmp_path / "mine").write_text("")
    model = small_models.grouped_llama()
    with pytest.raises(ArgumentError, match="folder must be new or empty"):
        export(model, plan_for(model), tmp_path)


def test_a_folder_that_differs_is_told(tmp_path):
    model = small_models.grouped_llama()
    plan = plan_for(model)
    export(model, plan, tmp_path)
    assert compare(model, plan, tmp_path) < 1e-4
    model.model.layers[0].self_attn.q_proj.weight.mul_(1.5)
    with pytest.raises(UnsupportedError, match="cannot hold the plan in its weights: the logits"):
        compare(model, plan, tmp_path)


def test_rows_of_queries():
    assert query_rows(small_models.phi3().model.layers[0].self_attn, "x") == ("qkv_proj", 8, 8)
    neox = small_models.gpt_neox().gpt_neox.layers[0].attention
    assert query_rows(neox, "x") == ("query_key_value", 8, 24)


def test_weights_that_came_from_a_quantised_file_are_written_as_they_are(tmp_path):
    model = small_models.grouped_llama()
    model.hf_quantizer, model.is_quantized = object(), True
    model.config.quantization_config = {"quant_method": "gguf"}
    export(model, plan_for(model), tmp_path)
    assert model.is_quantized
    assert "quant" not in (tmp_path / "config.json").read_text()
