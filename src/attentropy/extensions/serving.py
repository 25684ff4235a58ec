"""How other programs run an extended model: lines to paste."""

import json
import math
import shlex
from pathlib import Path

from attentropy.models.plan import Plan


def lines(plan: Plan, folder: str | Path, *, theta: float | None = None) -> list[str]:
    """Commands of vLLM and llama.cpp for an exported folder.

    Args:
        plan: what was exported.
        folder: where it is.
        theta: the base of the model's frequencies, which an override has to repeat.
    """
    found = [
        "from transformers import AutoModelForCausalLM",
        f"model = AutoModelForCausalLM.from_pretrained({str(folder)!r})",
    ]
    rope = plan.rope
    if rope is None:
        return [*found, shlex.join(["vllm", "serve", str(folder)])]
    settings = {
        "rope_parameters": rope.parameters({} if theta is None else {"rope_theta": theta}),
        "max_position_embeddings": rope.max_position_embeddings,
    }
    vllm = ["vllm", "serve", str(folder), "--max-model-len", str(measured_length(plan))]
    found.append(shlex.join([*vllm, "--hf-overrides", json.dumps(settings)]))
    return [*found, llama_cpp(plan)]


def measured_length(plan: Plan) -> int | None:
    """The length that the plan was tried at; else the one that its positions are made for.

    Args:
        plan: with what was measured, or without.
    """
    if plan.judged is not None:
        return plan.judged.length
    return None if plan.rope is None else plan.rope.max_position_embeddings


def llama_cpp(plan: Plan) -> str:
    """Flags of llama.cpp for the positions of a plan, or why there are none.

    Factors of heads are in the exported weights: convert the folder to GGUF first.

    Args:
        plan: what was exported.
    """
    rope = plan.rope
    assert rope is not None
    given = ["llama-cli", "-m", "MODEL.gguf", "-c", str(measured_length(plan))]
    match rope.rope_type:
        case "yarn":
            assert rope.factor is not None
            own = _own_factor(rope.factor)
            asked = own if rope.attention_factor is None else rope.attention_factor
            more = [
                "--rope-scaling", "yarn",
                "--rope-scale", f"{rope.factor:g}",
                "--yarn-orig-ctx", str(rope.original_max_position_embeddings),
                "--yarn-attn-factor", f"{asked / own:.6g}",
            ]  # fmt: skip
        case "linear":
            more = ["--rope-scaling", "linear", "--rope-scale", f"{rope.factor:g}"]
        case "default" if rope.rope_theta is not None:
            more = ["--rope-freq-base", f"{rope.rope_theta:g}"]
        case kind:
            return f"llama.cpp has no flags for {kind}: convert the exported folder to GGUF"
    return shlex.join([*given, *more])


def _own_factor(factor: float) -> float:
    """What llama.cpp multiplies --yarn-attn-factor with: 0.1 log s + 1."""
    return 1 + 0.1 * math.log(factor)
