"""Give a model of transformers other rotary positions; undoing restores it to the bit."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.models.intercept.registry import Undo, together
from attentropy.models.rope.settings import Rope, bands

# what a rotary module of transformers keeps besides its table
STATE = ("config", "rope_type", "attention_scaling", "max_seq_len_cached", "original_max_seq_len")
_turned: WeakSet[nn.Module] = WeakSet()


def rotary_modules(model: nn.Module) -> list[nn.Module]:
    """The modules of a model that compute rotary angles from its config.

    Args:
        model: the model.
    """
    return [module for module in model.modules() if _computes_angles(module)]


def why_fixed(model: nn.Module) -> str | None:
    """Why the positions of a model cannot be set, in words; None if they can.

    Args:
        model: the model.
    """
    name = type(model).__name__
    kinds = {
        str(kind)
        for module in model.modules()
        for kind in getattr(module, "layer_types", None) or ()
        if f"{kind}_inv_freq" in module._buffers
    }
    if kinds:
        return f"{name} has positions of its own for {' and '.join(sorted(kinds))}"
    if not rotary_modules(model):
        return f"{name} has no rotary positions that its config sets"
    return None


def rotary_width(model: nn.Module) -> int:
    """Features of a head that are turned.

    Args:
        model: the model.
    """
    frequencies: Any = rotary_modules(model)[0].inv_freq
    return 2 * frequencies.numel()


def rope_parameters(model: nn.Module) -> dict[str, Any]:
    """`rope_parameters` that the rotary modules of a model have.

    Args:
        model: the model.
    """
    config: Any = rotary_modules(model)[0].config
    return dict(config.rope_parameters)


def with_rope(config: Any, rope: Rope) -> Any:
    """A copy of a config of transformers that has the settings.

    Args:
        config: the config.
        rope: the settings.
    """
    new = copy.deepcopy(config)
    new.rope_parameters = rope.parameters(dict(config.rope_parameters))
    new.max_position_embeddings = rope.max_position_embeddings
    return new


def as_bands(model: nn.Module, rope: Rope) -> Rope:
    """The same angles as one divisor for each frequency, which every config can store.

    Args:
        model: a model of transformers with rotary positions.
        rope: settings whose angles do not depend on the length that is read.
    """
    module: Any = rotary_modules(model)[0]
    own = type(module)(with_rope(module.config, _plain(rope)))
    new = type(module)(with_rope(module.config, rope))
    trained = rope.original_max_position_embeddings or rope.max_position_embeddings
    return bands(
        (own.inv_freq.double() / new.inv_freq.double()).tolist(),
        trained=trained,
        to=rope.max_position_embeddings,
        attention_factor=float(new.attention_scaling),
    )


def _plain(rope: Rope) -> Rope:
    return Rope(rope_type="default", max_position_embeddings=rope.max_position_embeddings)


@contextmanager
def exact_angles(model: nn.Module) -> Iterator[None]:
    """Rotary tables keep their precision while the block changes that of the model.

    In bfloat16 the angle at position 12,288 would be wrong by whole turns.

    Args:
        model: any model.
    """
    tables = [(module, dict(module._buffers)) for module in rotary_modules(model)]
    yield
    for module, before in tables:
        device = _device(module)
        module._buffers.update({n: None if b is None else b.to(device) for n, b in before.items()})


def turn(model: nn.Module, rope: Rope) -> Undo:
    """Turn queries and keys of a model by other angles, until the function returned is called.

    Args:
        model: a model of transformers with rotary positions.
        rope: the settings.
    """
    why = why_fixed(model)
    if why is not None:
        raise UnsupportedError(f"rope settings need rotary positions of transformers: {why}")
    modules = rotary_modules(model)
    if any(module in _turned for module in modules):
        raise ArgumentError("plan", "without rope while the model has rope of another plan", rope)
    return together(*(_turn(module, rope) for module in modules))


def _computes_angles(module: nn.Module) -> bool:
    table = module._buffers.get("inv_freq")
    config = getattr(module, "config", None)
    has = isinstance(table, Tensor) and hasattr(module, "attention_scaling")
    return has and isinstance(getattr(config, "rope_parameters", None), dict)


def _turn(module: nn.Module, rope: Rope) -> Undo:
    """Put the state of a new module with the settings into this one."""
    own, buffers = dict(vars(module)), dict(module._buffers)
    with torch.device("cpu"):
        fresh: Any = type(module)(with_rope(module.config, rope))
    changed = [name for name in STATE if name in own]
    for name in changed:
        setattr(module, name, getattr(fresh, name))
    device = _device(module)
    module._buffers.update({name: table.to(device) for name, table in fresh._buffers.items()})
    hook = module.register_forward_pre_hook(_Clip(rope.clip), with_kwargs=True)
    _turned.add(module)

    def undo() -> None:
        hook.remove()
        device = _device(module)
        for name in set(vars(module)) - set(own):  # what a kind of scaling keeps for itself
            delattr(module, name)
        vars(module).update({name: own[name] for name in changed})
        module._buffers.clear()
        module._buffers.update({n: None if b is None else b.to(device) for n, b in buffers.items()})
        _turned.discard(module)

    return undo


def _device(module: nn.Module) -> torch.device:
    table = module._buffers["inv_freq"]
    assert table is not None
    return table.device


@dataclass(frozen=True)
class _Clip:
    """A hook on a rotary module: positions are at most `last`; None clips nothing."""

    last: int | None

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if self.last is None:
            return None
        if "position_ids" in kwargs:
            return args, {**kwargs, "position_ids": kwargs["position_ids"].clamp(max=self.last)}
        x, positions, *rest = args
        return (x, positions.clamp(max=self.last), *rest), kwargs
