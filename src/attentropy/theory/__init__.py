"""The mathematics of attention as functions: closed forms, bounds, exact Gaussian rows.

Only numpy and scipy are needed. `CATALOGUE` maps names to formulas that can be called;
`attentropy.lab.claims` checks what five documents say about attention by measuring it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attentropy.theory.catalogue import CATALOGUE as CATALOGUE

_MODULES = (
    "bounds", "catalogue", "cost", "entropy", "gaussian", "init", "noise", "populations",
    "sparsity",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "CATALOGUE":
        return import_module("attentropy.theory.catalogue").CATALOGUE
    if name in _MODULES:
        return import_module(f"attentropy.theory.{name}")
    raise AttributeError(f"module 'attentropy.theory' has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["CATALOGUE", *_MODULES]
