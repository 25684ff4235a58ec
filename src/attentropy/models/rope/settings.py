"""How a model turns queries and keys by position: the `rope_parameters` of transformers as a value.

Fields have the names that config.json gives them. With s = to / trained:

    linear(...)   every frequency divided by s
    ntk(...)      a larger base: the slowest wave s times slower, the fastest as it was
    dynamic(...)  the same, with s of the length that is read
    yarn(...)     slow waves s times slower, fast ones as they were; queries and keys times
                  0.1 log s + 1, or `attention_factor`
    llama3(...)   the same idea with other limits, no temperature
    bands(...)    any divisor for each frequency, which transformers calls longrope
    clipped(...)  positions past the trained ones are all the last trained one
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from attentropy.core.errors import ArgumentError

Kind = Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope"]
NEEDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": (
        "factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor",
    ),
    "longrope": ("factor", "original_max_position_embeddings", "short_factor", "long_factor"),
}  # fmt: skip
WITH_TEMPERATURE = ("yarn", "longrope")  # kinds whose attention_factor transformers applies


class Rope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of rotary positions; None leaves what the model has, or the default of the kind.

    Attributes:
        rope_type: the kind of scaling, as transformers names it.
        max_position_embeddings: the length that the settings are for.
        rope_theta: the base of the frequencies.
        factor: how many times slower waves become.
        original_max_position_embeddings: the trained length.
        attention_factor: on queries and on keys; kinds "yarn" and "longrope" only.
        beta_fast: waves that turn more often within the trained length stay as they are (yarn).
        beta_slow: waves that turn less often are slowed fully (yarn).
        low_freq_factor: the same limit in the llama3 kind.
        high_freq_factor: the same limit in the llama3 kind.
        short_factor: a divisor for each frequency up to the trained length (longrope).
        long_factor: a divisor for each frequency beyond it (longrope).
        clip: positions are at most this; such settings cannot be exported.
    """

    rope_type: Kind
    max_position_embeddings: int
    rope_theta: float | None = None
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None
    clip: int | None = None

    def __post_init__(self) -> None:
        if self.rope_type not in NEEDS:
            raise ArgumentError("rope_type", f"one of {tuple(NEEDS)}", repr(self.rope_type))
        for name in ("max_position_embeddings", *NEEDS[self.rope_type]):
            if getattr(self, name) is None:
                raise ArgumentError(name, f"given for rope_type {self.rope_type!r}", None)
        if self.attention_factor is not None and self.rope_type not in WITH_TEMPERATURE:
            rule = f"left out for rope_type {self.rope_type!r}, which has none"
            raise ArgumentError("attention_factor", rule, self.attention_factor)
        for name in self.__struct_fields__[1:]:
            _check_positive(name, getattr(self, name))

    @property
    def fits_config(self) -> bool:
        """Can config.json store all of it? It cannot store clipped positions."""
        return self.clip is None

    def parameters(self, before: dict[str, Any]) -> dict[str, Any]:
        """`rope_parameters` of transformers.

        Args:
            before: those of the model, whose base and rotary share stay unless they are set here.
        """
        kept = {k: v for k, v in before.items() if k in ("rope_theta", "partial_rotary_factor")}
        own = {name: getattr(self, name) for name in self.__struct_fields__}
        for name in ("max_position_embeddings", "clip"):
            del own[name]
        given = {name: value for name, value in own.items() if value is not None}
        return {**kept, **{k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}}


def linear(*, trained: int, to: int) -> Rope:
    """Every frequency divided by to / trained.

    Args:
        trained: the length that the model was trained at.
        to: the length that it should read.
    """
    return Rope(rope_type="linear", factor=to / trained, max_position_embeddings=to)


def ntk(*, trained: int, to: int, theta: float, width: int) -> Rope:
    """The base theta * s^(d / (d - 2)), s = to / trained.

    Args:
        trained: the length that the model was trained at.
        to: the length that it should read.
        theta: the base that the model has.
        width: d, the number of features of a head that are turned.
    """
    base = theta * (to / trained) ** (width / (width - 2))
    return Rope(rope_type="default", rope_theta=base, max_position_embeddings=to)


def dynamic(*, trained: int) -> Rope:
    """The base grows with the length that is read, and is the model's own up to the trained one.

    Args:
        trained: the length that the model was trained at.
    """
    return Rope(rope_type="dynamic", factor=1.0, max_position_embeddings=trained)


def yarn(*, trained: int, to: int, attention_factor: float | None = None) -> Rope:
    """YaRN for a context to / trained times as long.

    Args:
        trained: the length that the model was trained at.
        to: the length that it should read.
        attention_factor: on queries and on keys; 0.1 log(to / trained) + 1 if not given.

    >>> yarn(trained=8192, to=12288).parameters({"rope_theta": 1e5})["factor"]
    1.5
    """
    factor = to / trained
    own = 0.1 * math.log(factor) + 1
    return Rope(
        rope_type="yarn",
        factor=factor,
        original_max_position_embeddings=trained,
        attention_factor=own if attention_factor is None else attention_factor,
        max_position_embeddings=to,
    )


def llama3(*, trained: int, to: int) -> Rope:
    """Waves longer than the trained length slowed fully, shorter than a quarter of it not at all.

    Args:
        trained: the length that the model was trained at.
        to: the length that it should read.
    """
    return Rope(
        rope_type="llama3",
        factor=to / trained,
        original_max_position_embeddings=trained,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        max_position_embeddings=to,
    )


def bands(
    divisors: Sequence[float], *, trained: int, to: int, attention_factor: float = 1.0
) -> Rope:
    """Frequency i divided by divisors[i], at every length.

    Args:
        divisors: one for each frequency, the fastest first.
        trained: the length that the model was trained at.
        to: the length that it should read.
        attention_factor: on queries and on keys.
    """
    return Rope(
        rope_type="longrope",
        factor=to / trained,
        original_max_position_embeddings=trained,
        short_factor=tuple(divisors),
        long_factor=tuple(divisors),
        attention_factor=attention_factor,
        max_position_embeddings=to,
    )


def clipped(*, trained: int, to: int) -> Rope:
    """The model's own frequencies; positions past the trained ones are the last trained one.

    Args:
        trained: the length that the model was trained at.
        to: the length that it should read.
    """
    return Rope(rope_type="default", clip=trained - 1, max_position_embeddings=to)


def _check_positive(name: str, value: Any) -> None:
    for one in value if isinstance(value, tuple) else (value,):
        if one is not None and not (isinstance(one, int | float) and 0 < one < math.inf):
            raise ArgumentError(name, "positive", one)
