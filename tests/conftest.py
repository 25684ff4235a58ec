import os
import re

# before anything imports triton: its kernels then run on CPU tensors, in numpy
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from hypothesis import settings

# timing says nothing on a shared machine, and tensors make examples slow
settings.register_profile("attentropy", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("attentropy")
torch.set_num_threads(1)

# What `make quick` leaves to `make test`, by the names of files and tests.
WHOLE = re.compile(
    "compil|test_modes|fused/test_operators"  # torch.compile and torch.export
    "|_distributed|context_parallel|test_ring|test_reduce|_copies|killed"  # processes
    "|test_attentropy|theory/test_theory|nn/test_imports|theory/test_lab"  # fresh interpreters
    "|test_release|test_typing|tests/docs/"  # builds, type checkers, pages
    "|kernels/triton/|browser|test_live|test_server|test_serve"  # interpreters and browsers
    "|bench|plots|callbacks|TestAgainstReference|test_numerics|mpmath"  # much arithmetic
    "|lab/embedded|lab/experiments|claims/documents|report/curves|checks_of_torch"  # experiments
)


def pytest_collection_modifyitems(items):
    for item in items:
        if WHOLE.search(item.nodeid):
            item.add_marker(pytest.mark.whole)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def poisoned():
    """Memory from torch.empty holds NaN, so that a kernel cannot rely on what it finds there."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
