"""Device functions are called from small kernels of the tests, in Triton's interpreter."""

import pytest
import torch

from attentropy.kernels.triton.mode import interpreting

interpreted = pytest.mark.skipif(not interpreting(), reason="needs TRITON_INTERPRET=1")


def outputs(count, *shape, dtype=torch.float32):
    return [torch.full(shape, torch.nan, dtype=dtype) for _ in range(count)]
