"""An extended model as an ordinary folder of transformers: safetensors and a config.

Positions go into config.json. Constant factors of heads are multiplied into the rows of the query
projection, weights and bias: the logits are linear in the queries. What was written is loaded by
transformers itself and compared with the steered model.
"""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.distributed.team import ALONE, Team
from attentropy.extensions.serving import measured_length
from attentropy.models.intercept import candidates
from attentropy.models.intercept.candidates import device_of, heads_of
from attentropy.models.plan import Plan
from attentropy.models.rope.rotary import as_bands, with_rope
from attentropy.models.rope.settings import Rope
from attentropy.models.steer.steer import steer
from attentropy.models.tensor_parallel import shared_heads

BUDGET = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2, torch.float64: 1e-8}
QUANTISED = ("hf_quantizer", "is_quantized", "quantization_method")
TOKENS = 48  # tokens that the written model is compared on


def check_exportable(model: nn.Module, plan: Plan | None = None) -> None:
    """Raise UnsupportedError unless the model, and a plan for it, can be exported.

    Args:
        model: the model.
        plan: what to export; None asks for the model alone.
    """
    if not candidates.has_transformers(model):
        name = type(model).__name__
        raise UnsupportedError(f"only models of transformers are exported, not {name}")
    if plan is None:
        return
    if plan.rope is not None and plan.rope.clip is not None:
        raise UnsupportedError("clipped positions cannot be exported: no config can say them")
    for layer, heads in plan.factors.items():
        if any(len(set(factors)) > 1 for factors in heads):
            raise UnsupportedError(
                f"factors of {layer} grow with the row and cannot be exported: "
                "weights can hold constant factors only"
            )
        if any(factors[0] != 1 for factors in heads):
            query_rows(model.get_submodule(layer), layer)


def why_no_factors(model: nn.Module, layers: Iterable[str]) -> str | None:
    """Why the weights of a model cannot hold factors of heads, in words; None if they can.

    Args:
        model: the model.
        layers: names of the modules that attend.
    """
    try:
        for layer in layers:
            query_rows(model.get_submodule(layer), layer)
    except UnsupportedError as error:
        return str(error)
    return None


def export(model: nn.Module, plan: Plan, folder: str | Path, *, tokenizer: Any = None) -> None:
    """Write a folder that transformers loads and that gives the logits of steer(model, plan).

    Processes that share the heads of the model all call it; the first one collects the weights, and
    needs memory for all of them.

    Args:
        model: a model of transformers; it is unchanged afterwards.
        plan: rope settings, and constant factors of heads.
        folder: a new or empty folder.
        tokenizer: of transformers, written beside the model.
    """
    check_exportable(model, plan)
    folder, team = Path(folder), _team(model)
    team.of_first(lambda: _check_new(folder))
    own: Any = model
    config = _config(model, plan.rope)
    state = {**model.state_dict(), **dict(_scaled(model, plan))}
    with _as_plain(model):
        own.save_pretrained(folder, state_dict=state)
    if team.is_first:
        _describe(config, model, plan, folder, tokenizer)
    compare(model, plan, folder)


def _team(model: nn.Module) -> Team:
    """The processes that share the heads of a model; the first one writes."""
    shared = shared_heads(model)
    return ALONE if shared is None else Team(shared.peers)


def _check_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArgumentError("folder", "new or empty", str(folder))


def _describe(config: Any, model: nn.Module, plan: Plan, folder: Path, tokenizer: Any) -> None:
    """Write the config of the extended model, and the tokenizer."""
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = [type(model).__name__]
    config.dtype = next(model.parameters()).dtype
    config.save_pretrained(folder)
    if tokenizer is not None:
        longer = copy.deepcopy(tokenizer)
        longer.model_max_length = measured_length(plan) or config.max_position_embeddings
        longer.save_pretrained(folder)


def compare(model: nn.Module, plan: Plan, folder: str | Path) -> float:
    """The largest difference of logits between a written folder and the steered model, relative.

    Raises UnsupportedError if it is more than rounding: 1e-4 in float32.

    Args:
        model: the model.
        plan: what was exported.
        folder: where it is.
    """
    kind: Any = type(model)
    dtype, device, team = next(model.parameters()).dtype, device_of(model), _team(model)
    ids = torch.arange(TOKENS, device=device)[None] % model.config.vocab_size  # type: ignore[union-attr,operator]
    training = model.training
    handle = steer(model.eval(), plan)
    try:
        with torch.no_grad():
            wanted = model(ids).logits
    finally:
        handle.undo()
        model.train(training)

    def difference() -> float:
        written = kind.from_pretrained(folder, dtype=dtype).eval().to(device)
        with torch.no_grad():
            found = written(ids).logits
        return float((found - wanted).abs().max() / wanted.abs().max())

    error = team.of_first(difference)
    budget = BUDGET.get(wanted.dtype, 1e-4)
    if not error <= budget:
        raise UnsupportedError(
            f"{kind.__name__} cannot hold the plan in its weights: the logits of {folder} differ "
            f"by {error:.2g} of the largest, which is more than {budget:g}"
        )
    return error


def query_rows(module: nn.Module, name: str) -> tuple[str, int, int]:
    """The projection that makes queries, its rows per head, and the rows from head to head.

    Args:
        module: a module that attends.
        name: of the module, for the message.
    """
    heads = heads_of(module)
    if heads is not None and getattr(module, "q_norm", None) is None:
        for own, parts in (("q_proj", 1), ("query", 1), ("qkv_proj", 0), ("query_key_value", 3)):
            projection = getattr(module, own, None)
            if isinstance(projection, nn.Linear):
                rows = projection.out_features
                width = rows // (heads * parts) if parts else int(getattr(module, "head_dim", 0))
                if width and (parts == 0 or rows == heads * parts * width):
                    return own, width, max(1, parts) * width
    raise UnsupportedError(
        f"factors of the heads of {name} cannot be exported: {type(module).__name__} has no query "
        "projection whose rows belong to heads (q_proj, query, qkv_proj, query_key_value)"
    )


def _config(model: nn.Module, rope: Rope | None) -> Any:
    """The config of the folder; one that knows few kinds of scaling gets divisors of waves."""
    own: Any = model.config
    if rope is None:
        return copy.deepcopy(own)
    found = with_rope(own, rope)
    try:
        found.validate()
    except Exception:  # each library that checks configs has an error of its own
        found = with_rope(own, as_bands(model, rope))
        found.validate()
    return found


def _scaled(model: nn.Module, plan: Plan) -> Iterator[tuple[str, Tensor]]:
    """Names and values of the weights and biases that hold factors of heads."""
    for layer, heads in plan.factors.items():
        if all(factors[0] == 1 for factors in heads):
            continue
        module = model.get_submodule(layer)
        own, width, step = query_rows(module, layer)
        projection = getattr(module, own)
        for name, value in projection.named_parameters(recurse=False):
            exact = torch.promote_types(value.dtype, torch.float32)
            grown = torch.ones(projection.out_features, dtype=exact)
            for head, factors in enumerate(heads):
                grown[head * step : head * step + width] = factors[0]
            yield f"{layer}.{own}.{name}", _multiplied(value.detach(), grown)


def _multiplied(value: Tensor, rows: Tensor) -> Tensor:
    """A weight or bias with each row multiplied by a number, in its own precision."""
    column = rows.view(-1, *[1] * (value.dim() - 1)).to(value.device)
    mesh: Any = getattr(value, "device_mesh", None)
    if mesh is not None:
        from torch.distributed.tensor import DTensor, Replicate

        column = DTensor.from_local(column, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return (value * column).to(value.dtype)


@contextmanager
def _as_plain(model: Any) -> Iterator[None]:
    """Inside the block, weights that came from a quantised file are ordinary weights."""
    before = {name: vars(model)[name] for name in QUANTISED if name in vars(model)}
    for name in before:
        delattr(model, name)
    try:
        yield
    finally:
        vars(model).update(before)
