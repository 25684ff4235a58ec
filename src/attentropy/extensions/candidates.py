"""What can be tried to make a model read texts longer than its trained length."""

import math

import msgspec
from torch import nn

from attentropy.core.masks import Mask, lookback, prefix
from attentropy.models.plan import Plan
from attentropy.models.rope import rotary, settings
from attentropy.models.rope.settings import Rope
from attentropy.models.steer.steer import Steered, steer

SINKS = 4
UNTOUCHED, TRUNCATED = "untouched", "truncated"


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to read longer texts; its fields work together.

    Attributes:
        name: for tables.
        rope: settings of rotary positions; None leaves the model's own.
        factor: on the logits of every head.
        heads: a factor for each head, by layer; they multiply `factor`.
        log_length: logits times log n / log(trained) where more than the trained keys are seen.
        window: keys that a query sees, itself among them; None sees all.
        sinks: first keys that are seen besides the window.
        truncated: the model reads the last tokens only, as many as in training.
    """

    name: str
    rope: Rope | None = None
    factor: float = 1.0
    heads: dict[str, tuple[float, ...]] | None = None
    log_length: bool = False
    window: int | None = None
    sinks: int = 0
    truncated: bool = False

    @property
    def mask(self) -> Mask | None:
        """The keys that stay visible; None for all."""
        return None if self.window is None else lookback(self.window) | prefix(self.sinks)

    @property
    def family(self) -> str:
        """The name without its temperature."""
        return self.name.split(",")[0]

    @property
    def reach(self) -> int | None:
        """The length that its positions are made for; None if they are the model's own."""
        return None if self.rope is None else self.rope.max_position_embeddings

    @property
    def has_factors(self) -> bool:
        """Are there factors that no config can store, so that weights have to hold them?"""
        return self.factor != 1 or self.heads is not None

    @property
    def by_row(self) -> str | None:
        """Which part depends on the row, so that no checkpoint can hold it, in words; or None."""
        if self.truncated:
            return "truncation changes the input, not the model"
        if self.window is not None:
            return "a window with sinks hides other keys from each row"
        if self.log_length:
            return "a factor of log n depends on the row"
        if self.rope is not None and self.rope.clip is not None:
            return "no config can say that positions are clipped"
        return None


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The trained length of a model, and the length to reach.

    Attributes:
        model: the class of the model.
        trained: the trained length.
        to: the length that it should read.
        layers: the number of heads of each layer that attends, by name.
    """

    model: str
    trained: int
    to: int
    layers: dict[str, int]


def plan_of(candidate: Setting, task: Task) -> Plan | None:
    """The candidate as a plan; None where no plan can express it (truncation, windows).

    Args:
        candidate: what to do.
        task: what it is for.
    """
    if candidate.truncated or candidate.window is not None:
        return None
    ends = (task.trained, task.to) if candidate.log_length else (task.trained,)
    growth = [math.log(n) / math.log(task.trained) for n in ends]
    factors = {
        name: tuple(
            tuple(candidate.factor * own * g for g in growth) for own in _heads(candidate, name, n)
        )
        for name, n in task.layers.items()
    }
    plain = candidate.factor == 1 and candidate.heads is None and not candidate.log_length
    return Plan(
        model=task.model,
        reference=task.trained,
        hold=None,
        method=None,
        lengths=ends,
        factors={} if plain else factors,
        entropy={},
        spread={},
        rope=candidate.rope,
    )


def applied(candidate: Setting, model: nn.Module, task: Task) -> Steered:
    """Steer the model as the candidate says; the handle undoes it.

    Args:
        candidate: what to do.
        model: the model.
        task: what it is for.
    """
    return steer(model, plan_of(candidate, task), mask=candidate.mask)


def windows(task: Task) -> list[Setting]:
    """Windows of the trained length plus the first keys, as attention sinks.

    Args:
        task: what they are for.
    """
    found = []
    for sinks in (1, SINKS):
        size = max(1, task.trained - sinks)
        name = f"window of {size}, {sinks} sink" + "s" * (sinks > 1)
        found.append(Setting(name=name, window=size, sinks=sinks))
    return found


def of_positions(model: nn.Module, task: Task) -> list[Setting]:
    """Scalings of rotary positions that a probe of distances can judge; [] if there are none.

    Args:
        model: the model.
        task: what they are for.
    """
    if why_unscaled(model) is not None:
        return []
    trained, to = task.trained, task.to
    theta, width = rotary.rope_parameters(model)["rope_theta"], rotary.rotary_width(model)
    further = round(trained * (to / trained) ** 2)
    stretch = f"x{to / trained:.4g}"
    named = {
        f"linear {stretch}": settings.linear(trained=trained, to=to),
        f"dynamic NTK {stretch}": settings.dynamic(trained=trained),
        published(task): settings.yarn(trained=trained, to=to),
        f"YaRN {stretch}, no temperature": settings.yarn(
            trained=trained, to=to, attention_factor=1.0
        ),
        f"YaRN x{further / trained:.4g}": settings.yarn(trained=trained, to=further),
        f"llama3 {stretch}": settings.llama3(trained=trained, to=to),
    }
    if width > 2:
        named[f"NTK {stretch}"] = settings.ntk(trained=trained, to=to, theta=theta, width=width)
        divisors = ramp(model, task, slow=1, fast=4)
        named[f"longrope {stretch}"] = settings.bands(
            divisors, trained=trained, to=to, attention_factor=_longrope_factor(trained, to)
        )
    return [Setting(name=name, rope=rope) for name, rope in named.items()]


def published(task: Task) -> str:
    """The name of YaRN with its published temperature, the reference for others.

    Args:
        task: what it is for.
    """
    return f"YaRN x{task.to / task.trained:.4g}"


def clipping(model: nn.Module, task: Task) -> list[Setting]:
    """Clipped positions with log n, which no probe of distances can judge; [] without rope.

    Args:
        model: the model.
        task: what they are for.
    """
    if why_unscaled(model) is not None:
        return []
    rope = settings.clipped(trained=task.trained, to=task.to)
    return [Setting(name="clipped positions, log n", rope=rope, log_length=True)]


def why_unscaled(model: nn.Module) -> str | None:
    """Why no scaling of positions is tried for a model, in words; None if they are.

    Args:
        model: the model.
    """
    fixed = rotary.why_fixed(model)
    if fixed is not None:
        return fixed
    kind = rotary.rope_parameters(model).get("rope_type", "default")
    return None if kind == "default" else f"its positions are scaled already ({kind})"


def ramp(model: nn.Module, task: Task, *, slow: float, fast: float) -> list[float]:
    """Divisors of frequencies: 1 for waves of `fast` turns or more, s for those of `slow` or less.

    Turns are counted within the trained length; in between divisors are geometric in them.

    Args:
        model: has the frequencies.
        task: says s, the length over the trained one.
        slow: turns below which a wave is slowed fully.
        fast: turns above which it is not.
    """
    frequencies = rotary.rotary_modules(model)[0]._buffers["inv_freq"]
    assert frequencies is not None
    turns = (frequencies.double() * task.trained / (2 * math.pi)).log()
    share = (math.log(fast) - turns) / (math.log(fast) - math.log(slow))
    divisors: list[float] = ((task.to / task.trained) ** share.clamp(0, 1)).tolist()
    return divisors


def _longrope_factor(trained: int, to: int) -> float:
    """sqrt(1 + log s / log trained), the temperature of LongRoPE."""
    return math.sqrt(1 + math.log(to / trained) / math.log(trained))


def _heads(candidate: Setting, layer: str, count: int) -> tuple[float, ...]:
    return (1.0,) * count if candidate.heads is None else candidate.heads[layer]
