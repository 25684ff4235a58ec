"""Where does autograd stand? The private parts of torch that this takes, in one place."""

import torch


def in_backward() -> bool:
    """Inside a backward pass: what runs forward there is a recomputation by checkpointing."""
    if torch.compiler.is_compiling():
        return False
    return bool(torch._C._current_graph_task_id() != -1)


def in_checkpoint() -> bool:
    """Saved tensors are being intercepted, as non-reentrant checkpointing does in its forward.

    It compares what the recomputation saves with what the forward saved, so both must run the
    same attention, and the recomputation may come after watching has ended.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return False
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
