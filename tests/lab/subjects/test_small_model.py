import pytest
import torch

from attentropy.core.masks import causal
from attentropy.core.scales import Temperature
from attentropy.lab.subjects import small_model
from attentropy.nn.layers.multihead import MultiheadAttention


def test_windows_are_pieces_of_the_text():
    text = torch.arange(50)
    pieces = small_model.windows(text, 7, 20, torch.Generator().manual_seed(0))
    assert torch.equal(pieces - pieces[:, :1], torch.arange(7).expand(20, -1))
    assert small_model.windows(text, 50, 1, torch.Generator()).shape == (1, 50)


def test_the_loss_is_that_of_the_next_byte():
    model = small_model.ByteModel(8, 1, lambda: MultiheadAttention(8, 2, mask=causal)).eval()
    tokens = torch.randint(256, (3, 11))
    loss, stats = small_model.next_byte_loss(model, tokens)
    log_p = model(tokens[:, :-1])[0].double().log_softmax(-1)
    want = -log_p.gather(2, tokens[:, 1:, None]).mean()
    torch.testing.assert_close(loss.double(), want, atol=1e-5, rtol=1e-5)
    assert [one.entropy.shape for one in stats] == [(3, 2, 10)]


def test_scales_are_set_layer_by_layer():
    stack = small_model.Stack(8, 2, lambda: MultiheadAttention(8, 2))
    small_model.set_scales(stack.attentions, [Temperature(2.0), None])
    assert [layer.scale for layer in stack.attentions] == [Temperature(2.0), None]
    with pytest.raises(ValueError, match="shorter"):
        small_model.set_scales(stack.attentions, [None])
