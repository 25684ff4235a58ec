import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Tiny tensors on a busy machine: two threads would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
