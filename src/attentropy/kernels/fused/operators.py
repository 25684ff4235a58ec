"""The fused kernel as torch operators, made when a call is recorded for the first time."""

from attentropy.kernels.fused.kernel import PASSES
from attentropy.kernels.passes import Operators

OPERATORS = Operators(PASSES)
