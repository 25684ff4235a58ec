"""Which modules of a model may call attention, as their classes and names tell."""

import re
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from inspect import getattr_static
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

_WRAPPERS = re.compile(
    r"(^|\.)(_orig_mod|module|_fsdp_wrapped_module|_checkpoint_wrapped_module)\b"
)
_CROSS = re.compile(r"cross|enc_?dec|encoder_attn|encoder_attention", re.IGNORECASE)
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
HEADS_DIMENSION = "tp"  # of a mesh along which processes share heads
_PLAIN = frozenset(
    (
        nn.Linear, nn.Conv1d, nn.Conv2d, nn.Embedding, nn.Dropout, nn.Identity, nn.LayerNorm,
        nn.RMSNorm, nn.GroupNorm, nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid,
    )
)  # fmt: skip
_ACTIVATIONS = (F.relu, F.gelu, F.silu, torch.tanh, torch.sigmoid)
# names in code that neither attend nor normalise weights
_HARMLESS = frozenset(
    (
        "torch", "nn", "functional", "F", "Tensor", "to", "dtype", "device", "float", "float32",
        "type_as", "pow", "mean", "square", "var", "sqrt", "rsqrt", "shape", "size", "view",
        "reshape", "transpose", "contiguous", "chunk", "cat", "add", "mul", "linear",
        "layer_norm", "rms_norm", "dropout", "training", "relu", "gelu", "silu", "tanh",
        "sigmoid",
    )
)  # fmt: skip
_QUERIES = ("q_proj", "q_b_proj", "query", "qkv", "qkv_proj", "query_key_value", "c_attn")
_HEADS = ("num_heads", "n_heads", "num_attention_heads", "n_head", "nhead", "heads")


@dataclass(frozen=True, eq=False)
class Structure:
    """The modules of a model: which may call attention, and of which classes all are.

    Attributes:
        named: names and modules that may call attention themselves: all but torch's own leaves,
            compiled wrappers, TorchScript, and modules whose code shows that they do not attend.
        kinds: classes of all modules.
        is_compiled: the model, or a part of it, is compiled already.
        is_whole: no parameter is shared by processes.
    """

    named: list[tuple[str, nn.Module]]
    kinds: frozenset[type[nn.Module]]
    is_compiled: bool
    is_whole: bool

    @classmethod
    def of(cls, model: nn.Module) -> "Structure":
        """Worked out once for a model, and again if a module was added, replaced or renamed.

        Args:
            model: any module.
        """
        paths, modules = _walk(model)
        kinds = [type(module) for module in modules]
        known = _known.get(model)
        if known is None or not known.is_of(paths, modules, kinds):
            known = _known[model] = _Remembered.of(model, paths, modules, kinds)
        named = [(name, modules[place]) for name, place in known.chosen]
        whole = next(_unusual(modules), None) is None
        return cls(named, known.kinds, _is_any_compiled(modules), whole)


class _Remembered(NamedTuple):
    """What is kept of a model, which it does not keep alive."""

    paths: list[Any]
    modules: list[weakref.ref[nn.Module]]
    classes: list[type[nn.Module]]
    chosen: list[tuple[str, int]]
    kinds: frozenset[type[nn.Module]]

    @classmethod
    def of(
        cls,
        model: nn.Module,
        paths: list[Any],
        modules: list[nn.Module],
        classes: list[type[nn.Module]],
    ) -> "_Remembered":
        places = {id(module): place for place, module in enumerate(modules)}
        chosen = [(name, places[id(module)]) for name, module in may_attend(model)]
        refs = [weakref.ref(module) for module in modules]
        return cls(paths, refs, classes, chosen, frozenset(classes))

    def is_of(
        self, paths: list[Any], modules: list[nn.Module], classes: list[type[nn.Module]]
    ) -> bool:
        return (
            paths == self.paths
            and classes == self.classes
            and all(ref() is module for ref, module in zip(self.modules, modules, strict=True))
        )


_known: "weakref.WeakKeyDictionary[nn.Module, _Remembered]" = weakref.WeakKeyDictionary()


def _walk(model: nn.Module) -> tuple[list[Any], list[nn.Module]]:
    """All modules, each once, and which names and modules each holds, by their numbers."""
    modules, paths, numbers = [model], list[Any](), {id(model): 0}
    for module in modules:
        for name, child in module._modules.items() if module._modules else ():
            if child is None:
                continue
            number = numbers.setdefault(id(child), len(modules))
            if number == len(modules):
                modules.append(child)
            paths += (name, number)
        paths.append(None)
    return paths, modules


def may_attend(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules that may call attention themselves, in the order of the model.

    Left out are torch's own leaves, and norms and feed-forward parts whose code shows that they do
    not attend. Numbered ones are not left out, as coverage tells of layers without attention, nor
    those named attention, but for norms such as a post_attention_layernorm.

    Args:
        model: any module.
    """
    for name, module in model.named_modules():
        if hasattr(module, "_orig_mod") or isinstance(module, torch.jit.ScriptModule):
            continue
        leaf = next(module.children(), None) is None
        if leaf and type(module).__module__.startswith("torch.nn.modules"):
            continue
        part = name.rpartition(".")[2]
        told = part.isdigit() or (looks_like_attention(name, module) and "norm" not in part.lower())
        if not part or told or not is_plain(module):
            yield plain_name(name), module


def is_plain(module: nn.Module) -> bool:
    """Does a module only apply norms, products with weights and activations, as its code shows?

    Every name in the code of its forward must be known to have nothing to do with attention.

    >>> is_plain(nn.Linear(2, 2)), is_plain(nn.MultiheadAttention(2, 1)), is_plain(nn.Softmax(-1))
    (True, False, False)

    Args:
        module: any module.
    """
    kind: Any = type(module)
    if kind in _PLAIN:
        return True
    names = None if "forward" in vars(module) else _unknown_names(kind)
    return names is not None and all(_is_harmless(module, name) for name in names)


def _is_harmless(module: nn.Module, name: str) -> bool:
    """Is an attribute of a module a weight, a number, a setting, or a module that is plain?"""
    if name in module._parameters or name in module._buffers:
        return True
    if name in module._modules:
        part = module._modules[name]
        return part is None or is_plain(part)
    value = vars(module).get(name, nn.Module)
    return isinstance(value, int | float | str | None) or any(value is one for one in _ACTIVATIONS)


@cache
def _unknown_names(kind: Any) -> frozenset[str] | None:
    """Names in the code of a class that may not be harmless; None if it cannot be read."""
    if kind.__call__ is not nn.Module.__call__ or kind.__module__.startswith("torch.nn.modules"):
        return None
    unknown, todo, read = set[str](), ["forward"], set[str]()
    while todo:
        name = todo.pop()
        method = getattr_static(kind, name, None)
        code = getattr(method, "__code__", None)
        if code is None or code.co_freevars or any(isinstance(x, CodeType) for x in code.co_consts):
            return None
        read.add(name)
        for used in set(code.co_names) - _HARMLESS - read:
            own = getattr_static(kind, used, None)
            todo.append(used) if isinstance(own, FunctionType) else unknown.add(used)
    return frozenset(unknown)


def plain_name(name: str) -> str:
    """A module's name without what compile, DDP and FSDP wrap around it.

    >>> plain_name("module._orig_mod.layers.0.attn")
    'layers.0.attn'
    """
    while (shorter := _WRAPPERS.sub("", name, count=1).lstrip(".")) != name:
        name = shorter
    return name


def looks_like_attention(name: str, module: nn.Module) -> bool:
    """Whether a module is attention, by its class or the last part of its name.

    Args:
        name: of the module in its model.
        module: the module.
    """
    return _is_named(_ATTENTION, type(module).__name__, name)


def might_attend(name: str, module: nn.Module) -> bool:
    """Whether a module is attention by its name, and no norm or position beside it.

    Args:
        name: of the module in its model.
        module: the module.
    """
    return looks_like_attention(name, module) and next(module.children(), None) is not None


def looks_like_cross(name: str, module: nn.Module) -> bool:
    """Whether a module is cross-attention, by what transformers calls it.

    Args:
        name: of the module in its model.
        module: the module.
    """
    if getattr(module, "is_cross_attention", False) is True:
        return True
    return _is_named(_CROSS, type(module).__name__, name)


def _is_named(pattern: re.Pattern[str], kind: str, name: str) -> bool:
    """Whether the name of a class, or the last part of a module's name, matches."""
    # torch.compile warns of what remembers its results
    search = _search if torch.compiler.is_compiling() else _remembered
    return search(pattern, kind, name)


def _search(pattern: re.Pattern[str], kind: str, name: str) -> bool:
    return bool(pattern.search(f"{kind} {name.rpartition('.')[2]}"))


_remembered = lru_cache(maxsize=4096)(_search)


def heads_of(module: nn.Module) -> int | None:
    """The number of heads that a module says it has."""
    for holder in (module, getattr(module, "config", None)):
        for name in _may_have(holder):
            value = getattr(holder, name, None)
            if isinstance(value, int):
                return value
    return None


def _may_have(holder: Any) -> tuple[str, ...]:
    """Names of _HEADS to ask for: a module takes long to say that it lacks an attribute."""
    kind = type(holder)
    if getattr(kind, "__getattr__", None) is not nn.Module.__getattr__:
        return _HEADS
    return tuple(name for name in _HEADS if name in vars(holder) or hasattr(kind, name))


def is_compiled(model: nn.Module) -> bool:
    """Is it, or a part of it, compiled already?"""
    return _is_any_compiled(_walk(model)[1])


def _is_any_compiled(modules: list[nn.Module]) -> bool:
    return any(
        "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None
        for module in modules
    )


def has_transformers(model: nn.Module) -> bool:
    """Is there a transformers model in it? Imports nothing."""
    return any(is_transformers(module) for module in model.modules())


def is_transformers(module: nn.Module | None) -> bool:
    """Is it a transformers model itself? Imports nothing."""
    base = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    return base is not None and isinstance(module, base)


def device_of(model: nn.Module) -> torch.device:
    """The device of the model's first parameter; the CPU if it has none.

    Parameters on the meta device come last: they are elsewhere until a module needs them.

    Args:
        model: the model, or a part of it.
    """
    first, todo = None, [model]
    while todo:  # in the order of model.parameters(), which takes long to give the first
        module = todo.pop()
        for parameter in module._parameters.values():
            if parameter is not None and parameter.device.type != "meta":
                return parameter.device
            first = first or (parameter.device if parameter is not None else None)
        todo += [child for child in reversed(module._modules.values()) if child is not None]
    return first or torch.device("cpu")


def is_cut(module: nn.Module) -> bool:
    """Are parameters of a module cut along the dimension "tp" of a mesh, so that heads are shared?

    Args:
        module: any module.
    """
    return next(cut_along(module), None) is not None


def gathering(model: nn.Module) -> Iterator[nn.Module]:
    """Modules whose queries every process gathers, though their weights may be cut.

    So it is in transformers' plans of models that normalise queries of all heads together, or that
    hold queries, keys and values in one weight.

    Args:
        model: any module.
    """
    for holder in model.modules():
        plan = getattr(holder, "_tp_plan", None) if is_transformers(holder) else None
        split = [name.rpartition(".") for name, style in (plan or {}).items() if _gathers(style)]
        around = {module for module, _, part in split if part in _QUERIES}
        for name, module in holder.named_modules() if around else ():
            if re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) in around:
                yield module


def _gathers(style: Any) -> bool:
    return isinstance(style, str) and (style == "colwise_rep" or "gather" in style)


def cut_along(module: nn.Module) -> Iterator[Any]:
    """Meshes along whose dimension "tp" a parameter is cut.

    Args:
        module: any module.
    """
    for parameter in _unusual(_walk(module)[1]):
        mesh = getattr(parameter, "device_mesh", None)
        names = getattr(mesh, "mesh_dim_names", None) or ()
        if HEADS_DIMENSION in names:
            placement = getattr(parameter, "placements", ())[names.index(HEADS_DIMENSION)]
            if placement.is_shard():
                yield mesh


def _unusual(modules: list[nn.Module]) -> Iterator[Any]:
    """Parameters of classes of their own, as those that processes share are."""
    for module in modules:
        for parameter in module._parameters.values() if module._parameters else ():
            if parameter is not None and type(parameter) is not nn.Parameter:
                yield parameter
