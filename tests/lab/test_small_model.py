import torch

from attentropy.lab import small_model
from attentropy.nn.multihead import MultiheadAttention
from attentropy.scales import HoldEntropy


def test_spreads_are_those_of_the_logits():
    model = small_model.ByteModel(16, 2, lambda: MultiheadAttention(16, 2))
    tokens = torch.randint(256, (3, 12))
    found = small_model.spreads(model, model.stack.attentions, tokens)
    block = model.stack.blocks[0]
    x, layer = block.norm(model.embedding(tokens)), block.attention
    q, k = (
        (x @ w.T + b).unflatten(-1, (2, 8)).transpose(1, 2)
        for w, b in ((layer.q_weight, layer.q_bias), (layer.k_weight, layer.k_bias))
    )
    want = (q @ k.mT / 8**0.5).var(-1).mean((0, 2)).sqrt()
    assert [x.shape for x in found] == [(2,), (2,)]
    assert torch.allclose(found[0], want)


def test_beyond_keeps_short_rows():
    rule = small_model.held([torch.tensor([1.0, 2.0])], 64)[0]
    visible = torch.tensor([1.0, 64.0, 256.0]).view(1, 1, 3)
    scale = rule(16, visible)
    assert torch.allclose(scale[..., :2], torch.tensor(0.25))
    assert torch.equal(scale[..., 2], HoldEntropy(64, (1.0, 2.0))(16, visible)[..., 2])


def test_windows_are_pieces_of_the_text():
    text = torch.arange(50)
    pieces = small_model.windows(text, 7, 20, torch.Generator().manual_seed(0))
    assert torch.equal(pieces - pieces[:, :1], torch.arange(7).expand(20, -1))
    assert small_model.windows(text, 50, 1, torch.Generator()).shape == (1, 50)
