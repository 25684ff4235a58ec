"""The Triton kernel as torch operators, made when a call is recorded for the first time."""

from attentropy.kernels.passes import Operators
from attentropy.kernels.triton.kernel import PASSES

OPERATORS = Operators(PASSES)
