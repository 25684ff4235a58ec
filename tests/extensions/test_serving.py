import json
import shlex

import pytest

import attentropy as at
from attentropy.extensions.serving import lines, llama_cpp
from attentropy.models.rope import settings


def plan(rope):
    return at.Plan(
        model="x", reference=64, hold=None, method=None, lengths=(64,), factors={}, entropy={},
        spread={}, rope=rope,
    )  # fmt: skip


def test_vllm_is_told_positions_and_length():
    found = lines(plan(settings.yarn(trained=64, to=96)), "my model")
    asked = shlex.split(next(line for line in found if line.startswith("vllm")))
    assert asked[:3] == ["vllm", "serve", "my model"]
    settings_given = json.loads(asked[asked.index("--hf-overrides") + 1])
    assert settings_given["max_position_embeddings"] == 96
    assert settings_given["rope_parameters"]["rope_type"] == "yarn"
    assert settings_given["rope_parameters"]["factor"] == 1.5


def test_llama_cpp_multiplies_its_own_temperature():
    asked = llama_cpp(plan(settings.yarn(trained=64, to=96))).split()
    assert asked[asked.index("--rope-scaling") + 1] == "yarn"
    assert asked[asked.index("--rope-scale") + 1] == "1.5"
    assert asked[asked.index("--yarn-orig-ctx") + 1] == "64"
    assert float(asked[asked.index("--yarn-attn-factor") + 1]) == pytest.approx(1.0)
    none = llama_cpp(plan(settings.yarn(trained=64, to=96, attention_factor=1.0))).split()
    assert float(none[none.index("--yarn-attn-factor") + 1]) == pytest.approx(1 / 1.0405465)


def test_other_kinds():
    assert "--rope-scaling linear --rope-scale 1.5" in llama_cpp(
        plan(settings.linear(trained=64, to=96))
    )
    ntk = llama_cpp(plan(settings.ntk(trained=64, to=96, theta=1e4, width=8)))
    assert "--rope-freq-base 17170.7" in ntk
    assert "no flags for llama3" in llama_cpp(plan(settings.llama3(trained=64, to=96)))
    assert lines(plan(None), "f")[-1] == "vllm serve f"
