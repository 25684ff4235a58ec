"""The mathematics of attention as functions: closed forms, bounds, exact Gaussian rows.

Only numpy and scipy are needed. `CATALOGUE` maps names to formulas that can be called;
`attentropy.lab.claims` checks what five documents say about attention by measuring it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attentropy.theory import bounds as bounds
    from attentropy.theory import catalogue as catalogue
    from attentropy.theory import cost as cost
    from attentropy.theory import entropy as entropy
    from attentropy.theory import gaussian as gaussian
    from attentropy.theory import init as init
    from attentropy.theory import noise as noise
    from attentropy.theory import populations as populations
    from attentropy.theory import sparsity as sparsity
    from attentropy.theory.catalogue import CATALOGUE as CATALOGUE

_MODULES = (
    "bounds", "catalogue", "cost", "entropy", "gaussian", "init", "noise", "populations",
    "sparsity",
)  # fmt: skip

__all__ = ["CATALOGUE", *_MODULES]  # noqa: PLE0604

if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name == "CATALOGUE":
            return import_module("attentropy.theory.catalogue").CATALOGUE
        if name in _MODULES:
            return import_module(f"attentropy.theory.{name}")
        raise AttributeError(f"module 'attentropy.theory' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
