import os

# before anything imports triton: its kernels then run on CPU tensors, in numpy
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from hypothesis import settings

# timing says nothing on a shared machine, and tensors make examples slow
settings.register_profile("attentropy", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("attentropy")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def poisoned():
    """Memory from torch.empty holds NaN, so that a kernel cannot rely on what it finds there."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
