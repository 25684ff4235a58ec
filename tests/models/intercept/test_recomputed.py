"""Functions that are checkpointed inside a steered module are recomputed as it is steered."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import attentropy as at
from attentropy.core.errors import UnsupportedError
from attentropy.nn import MultiheadAttention

X = torch.randn(2, 11, 32, generator=torch.Generator().manual_seed(1))


class Inside(nn.Module):
    """Checkpoints a function inside its forward, not a module."""

    def __init__(self, how, reentrant):
        super().__init__()
        torch.manual_seed(0)
        self.project, self.how, self.reentrant = nn.Linear(32, 96), how, reentrant

    def attention(self, q, k, v):
        if self.how == "attend":
            return at.attend(q, k, v).out
        return F.scaled_dot_product_attention(q, k, v)

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        if self.reentrant is None:
            return self.attention(q, k, v)
        function = self.attention
        if self.how == "closure":

            def function(q, k, v):
                return self.attention(q, k, v)

        elif self.how == "alone":
            function = F.scaled_dot_product_attention
        return checkpoint(function, q, k, v, use_reentrant=self.reentrant)


def gradient(how, reentrant):
    model = Inside(how, reentrant)
    handle = at.steer(model, temperature=0.2)
    try:
        Fit(model).run()
    finally:
        handle.undo()
    return model.project.weight.grad


class Fit(nn.Module):
    """Asks for gradients, as a Lightning module does, and is a module too."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def run(self):
        self.model(X).square().sum().backward()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("how", ["attend", "sdpa", "closure"])
def test_gradients_of_a_function_that_is_checkpointed_inside_of_a_layer(how, reentrant):
    torch.testing.assert_close(gradient(how, reentrant), gradient(how, None))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputation_of_no_module_is_refused(reentrant):
    with pytest.raises(UnsupportedError, match="nothing says for which module"):
        gradient("alone", reentrant)


def test_other_models_may_checkpoint_functions_beside_a_steered_one():
    steered, other = MultiheadAttention(32, 4), Inside("sdpa", True)
    handle = at.steer(steered, temperature=0.2)
    other(X).square().sum().backward()
    handle.undo()
    plain = Inside("sdpa", None)
    plain(X).square().sum().backward()
    torch.testing.assert_close(other.project.weight.grad, plain.project.weight.grad)
