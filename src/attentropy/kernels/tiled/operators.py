"""The tiled kernel as torch operators, made when a call is recorded for the first time."""

from attentropy.kernels.passes import Operators
from attentropy.kernels.tiled import softmax, sums

SOFTMAX = Operators(softmax.PASSES)
SUMS = Operators(sums.PASSES)
