"""Tells a forward pass from its recomputation by activation checkpointing."""

import torch


def recomputing() -> bool:
    """True inside a backward pass, where checkpointing runs forward passes again.

    A layer that changes its own state in forward must not do so there: the recomputation would
    differ from the pass whose gradient is wanted. torch has no public function for this.
    """
    if torch.compiler.is_compiling():
        return False
    return bool(torch._C._current_graph_task_id() != -1)
