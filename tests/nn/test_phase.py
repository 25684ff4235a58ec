"""A recomputation by activation checkpointing is told from a forward pass."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from attentropy.nn._phase import recomputing


class Asking(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.said = []

    def forward(self, x):
        self.said.append(recomputing())
        return x * self.weight


def test_forward_passes_and_their_recomputation():
    module, x = Asking(), torch.ones(2, requires_grad=True)
    module(x).sum().backward()
    assert module.said == [False]
    checkpoint(module, x, use_reentrant=False).sum().backward()
    assert module.said == [False, False, True]
    assert not recomputing()


def test_a_graph_is_no_recomputation():
    module, x = Asking(), torch.ones(2, requires_grad=True)
    torch.compile(module, backend="eager")(x).sum().backward()
    assert module.said[-1:] in ([], [False])
