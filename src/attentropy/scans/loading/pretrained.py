"""transformers models and tokenizers, loaded quietly and only from where it is allowed."""

import io
import logging
import os
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from torch import nn

from attentropy.scans.errors import ScanError
from attentropy.scans.loading import offload

MISSING = 0.1  # share of the tensors that a file may lack
SHIPPED = ("eager", "sdpa", "flex_attention", "paged|eager")  # transformers fetches all others


def load_model(
    where: str,
    *,
    dtype: str,
    pickle: bool,
    options: dict[str, Any],
    count: Callable[[int, int], None] | None = None,
    device_map: str | None = None,
    device: str = "cpu",
    tensor_parallel: bool = False,
) -> nn.Module:
    """The model of the class that its config names.

    Args:
        where: a folder, or a name on the hub.
        dtype: the precision, by torch's name for it.
        pickle: allow pickled weights.
        options: for `from_pretrained`.
        count: receives how many tensors of a GGUF file are read, and how many there are.
        device_map: where weights stay until a module runs: "auto", "cpu" or "disk"; None loads
            all into memory.
        device: where modules run whose weights are elsewhere.
        tensor_parallel: each process loads its heads of every layer.
    """
    transformers = _transformers(offline=options["local_files_only"])
    import torch

    given = {
        "dtype": getattr(torch, dtype),
        "use_safetensors": None if pickle or "gguf_file" in options else True,
        "output_loading_info": True,
        **options,
    }
    if device_map is not None:
        offload.check_kind(device_map)
    if tensor_parallel:
        _check_parallel(device, device_map, options)
        given["distributed_config"] = _by_heads()
    with quiet(), _explained(where), _counted(count):
        config = transformers.AutoConfig.from_pretrained(where, **options)
        if tensor_parallel:
            _check_shares(config)
        foreign = [] if not options["local_files_only"] else _keep_shipped(config)
        auto = _class_for(transformers, config)
        if device_map is None:
            model, found = auto.from_pretrained(where, config=config, **given)
        else:
            model, found = _offloaded(auto, where, config, given, kind=device_map, device=device)
    _check_fit(where, model, found["missing_keys"])
    if foreign:
        warnings.warn(
            f"{where}: its config asks for the attention of {foreign[0]!r}, which transformers "
            "would fetch from the hub; it is loaded with the attention that transformers ships",
            stacklevel=2,
        )
    return model


def _check_parallel(device: str, device_map: str | None, options: dict[str, Any]) -> None:
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        raise ScanError("{tensor_parallel} needs several processes: start them with torchrun")
    if device_map is not None or "gguf_file" in options:
        raise ScanError("{tensor_parallel} takes a transformers folder, and no {device_map}")
    if device != "cpu":
        rule = (
            "{tensor_parallel} runs on CPUs, got {found}: on GPUs load the model with a tp_plan "
            "yourself, and call at.scan in every process"
        )
        raise ScanError(rule, found=device)


def _check_shares(config: Any) -> None:
    """Refuse a model that processes cannot share, before its weights are read."""
    import torch.distributed as dist

    own, size = config.get_text_config(), dist.get_world_size()
    if not getattr(own, "base_model_tp_plan", None):
        rule = "{tensor_parallel}: transformers has no plan to share a model of type {kind}"
        raise ScanError(rule, kind=config.model_type)
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(own, name, None)
        if isinstance(heads, int) and heads % size:
            rule = (
                "{tensor_parallel} needs a number of processes that divides {name} = {heads}, "
                "got {size}"
            )
            raise ScanError(rule, name=name, heads=heads, size=size)


def _by_heads() -> Any:
    """The heads of every layer over all processes, as the plan of the model has it."""
    try:
        from transformers.distributed import DistributedConfig
    except ImportError as error:
        raise ScanError("{tensor_parallel} needs a newer transformers") from error
    return DistributedConfig(tp_plan="auto")


def _offloaded(
    auto: Any, where: str, config: Any, given: dict[str, Any], *, kind: str, device: str
) -> tuple[nn.Module, dict[str, Any]]:
    """The model with weights that stay on disk or on the CPU, and what was missing."""
    empty = offload.empty_model(auto, config)
    with offload.scratch() as keep:
        folder = keep(None)
        if "gguf_file" in given:
            name, dtype = given.pop("gguf_file"), given["dtype"]
            file = Path(where) / name
            where = offload.converted(file, folder, empty=empty, config=config, dtype=dtype)
        chosen = offload.device_map(empty, kind, device)
        model, found = auto.from_pretrained(
            where, config=config, device_map=chosen, offload_folder=folder, **given
        )
        keep(model)
    return model, found


def _keep_shipped(config: Any) -> list[str]:
    """Forget the attention kernels in a config that would be fetched; the names of these."""
    found: list[str] = []
    for name in getattr(config, "sub_configs", {}):
        if (part := getattr(config, name, None)) is not None:
            found += _keep_shipped(part)
    asked = getattr(config, "_attn_implementation", None)
    if asked is not None and asked not in SHIPPED:
        found.append(str(asked))
        config._attn_implementation = None
    return found


def load_tokenizer(where: str, *, options: dict[str, Any]) -> Any:
    """The tokenizer beside the model, None if there is none.

    Args:
        where: a folder, or a name on the hub.
        options: for `from_pretrained`.
    """
    transformers = _transformers(offline=options["local_files_only"])
    with quiet():
        try:
            return transformers.AutoTokenizer.from_pretrained(where, **options)
        except Exception:  # each tokenizer class fails in its own way when its files are absent
            return None


def _transformers(*, offline: bool) -> Any:
    if offline:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import transformers
    except ImportError as error:
        raise ScanError("{model} needs transformers: pip install 'attentropy[hf]'") from error
    return transformers


def _class_for(transformers: Any, config: Any) -> Any:
    names = getattr(config, "architectures", None) or [""]
    if names[0].endswith(("ForCausalLM", "LMHeadModel")):
        return transformers.AutoModelForCausalLM
    if not names[0] and type(config) in transformers.AutoModelForCausalLM._model_mapping:
        return transformers.AutoModelForCausalLM
    if names[0].endswith("ForConditionalGeneration") and type(config) in (
        transformers.AutoModelForSeq2SeqLM._model_mapping
    ):
        return transformers.AutoModelForSeq2SeqLM
    return transformers.AutoModel


def _check_fit(where: str, model: nn.Module, missing: Collection[str]) -> None:
    """Weights that are missing were made up: a pooler or a head may be, not a model."""
    total = len(list(model.parameters()))
    if len(missing) > MISSING * total:
        count = f"{len(missing)} of {total} are missing"
        text = "{model} {where}: its weights do not fit its config: {count}"
        raise ScanError(text, where=where, count=count)


@contextmanager
def _explained(where: str) -> Iterator[None]:
    """Whatever the library raises on a bad folder, as one sentence."""
    try:
        yield
    except ScanError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        text = "{model} {where} cannot be loaded: {why}"
        raise ScanError(text, where=where, why=lines[0]) from error


@contextmanager
def _counted(count: Callable[[int, int], None] | None) -> Iterator[None]:
    """Tell `count` of the tensors that transformers dequantises, which it shows as a bar."""
    from transformers import modeling_gguf_pytorch_utils as home

    bar = getattr(home, "tqdm", None)
    if count is None or bar is None:
        yield
        return

    def counted(tensors: Collection[Any], **options: Any) -> Iterator[Any]:
        for done, tensor in enumerate(tensors, 1):
            yield tensor
            count(done, len(tensors))

    home.tqdm = counted
    try:
        yield
    finally:
        home.tqdm = bar


@contextmanager
def quiet() -> Iterator[None]:
    """Without progress bars and advice: the scan has its own."""
    from transformers.utils import logging as hf

    level, bars = hf.get_verbosity(), hf.is_progress_bar_enabled()
    hf.set_verbosity(logging.ERROR)
    hf.disable_progress_bar()
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):  # some bars obey nothing
            warnings.simplefilter("ignore")
            yield
    finally:
        hf.set_verbosity(level)
        if bars:
            hf.enable_progress_bar()
