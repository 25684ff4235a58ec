import json
import shlex

import msgspec
import pytest

import attentropy as at
from attentropy.extensions.serving import lines, llama_cpp, measured_length
from attentropy.models.losses.paired import Paired
from attentropy.models.plan import Judged
from attentropy.models.rope import settings


def plan(rope):
    return at.Plan(
        model="x", reference=64, hold=None, method=None, lengths=(64,), factors={}, entropy={},
        spread={}, rope=rope,
    )  # fmt: skip


def test_vllm_is_told_positions_and_length():
    found = lines(plan(settings.yarn(trained=64, to=96)), "my model", theta=1e5)
    asked = shlex.split(next(line for line in found if line.startswith("vllm")))
    assert asked[:3] == ["vllm", "serve", "my model"]
    settings_given = json.loads(asked[asked.index("--hf-overrides") + 1])
    assert settings_given["max_position_embeddings"] == 96
    assert settings_given["rope_parameters"]["rope_type"] == "yarn"
    assert settings_given["rope_parameters"]["factor"] == 1.5
    assert settings_given["rope_parameters"]["rope_theta"] == 1e5


def test_a_context_is_promised_as_long_as_it_was_measured():
    wide = plan(settings.yarn(trained=64, to=144))
    assert measured_length(wide) == 144
    change = Paired(before=2.0, after=1.0, error=0.1, texts=3)
    judged = Judged(length=96, last=32, held_out=True, change=change, truncation=change)
    found = lines(msgspec.structs.replace(wide, judged=judged), "f")
    assert any("--max-model-len 96 " in line for line in found)
    assert any("-c 96 --rope-scaling yarn --rope-scale 2.25 " in line for line in found)
    longer = msgspec.structs.replace(plan(settings.dynamic(trained=64)), judged=judged)
    assert measured_length(longer) == 96, "its own length is the trained one"
    assert measured_length(plan(None)) is None


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
