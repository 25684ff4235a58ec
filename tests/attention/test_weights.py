"""Weights that are asked for, against the formula."""

import pytest
import torch

import attentropy as at
from attentropy.attention import weights as room
from attentropy.attention.weights import attention_weights


def tensors(*shape, number=2):
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(*shape, generator=generator) for _ in range(number)]


def test_weights_are_those_of_softmax():
    q, _ = tensors(2, 4, 5, 8)
    k, v = tensors(2, 2, 9, 8)
    whole = k.repeat_interleave(2, 1)
    hidden = torch.ones(5, 9).triu(5).bool()
    wanted = (q @ whole.mT / 8**0.5).masked_fill(hidden, -torch.inf).softmax(-1)
    found = attention_weights(q, k, mask=at.causal)
    torch.testing.assert_close(found, wanted)
    out = at.attend(q, k, v, mask=at.causal).out
    torch.testing.assert_close(found @ v.repeat_interleave(2, 1), out)


@pytest.mark.parametrize(
    "options",
    [{"sink": torch.zeros(2)}, {"weights": at.Entmax()}, {"weights": at.L1(), "mask": at.causal}],
    ids=["sink", "entmax", "l1"],
)
def test_weights_make_the_output(options):
    q, k = tensors(1, 2, 6, 4)
    torch.testing.assert_close(
        attention_weights(q, k, **options) @ k, at.attend(q, k, k, **options).out
    )


def test_gradients_flow_through_weights():
    q, k = (x.double().requires_grad_() for x in tensors(1, 1, 3, 4))
    assert torch.autograd.gradcheck(lambda q, k: attention_weights(q, k, mask=at.causal), (q, k))


def test_rows_and_calls_without_keys():
    q, k = tensors(1, 1, 3, 4)
    assert (attention_weights(q, k, mask=~at.full) == 0).all()
    assert attention_weights(q, k[:, :, :0]).shape == (1, 1, 3, 0)


def test_large_weights_are_spoken_of(monkeypatch):
    monkeypatch.setattr(room, "LARGE", 8)
    q, k = tensors(1, 1, 3, 4)
    with pytest.warns(ResourceWarning, match=r"weights of shape \[1, 1, 3, 3\] take .* like n\^2"):
        attention_weights(q, k)


def test_steered_layers_give_the_steered_weights():
    layer, x = at.nn.MultiheadAttention(16, 2), torch.randn(1, 5, 16)
    handle = at.steer(layer, mask=at.causal)
    _, weights = layer(x, need_weights=True)
    handle.undo()
    assert (weights.triu(1) == 0).all()
    assert (layer(x, need_weights=True).weights > 0).all()
