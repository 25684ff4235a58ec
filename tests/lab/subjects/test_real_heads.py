import pytest
import torch
from torch import nn

import attentropy as at
from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.lab.subjects.real_heads import EMBEDDED, Given, given_embedded, real_heads
from attentropy.nn.layers.multihead import MultiheadAttention
from tests.scans.tiny import Tiny

TEXT = torch.randint(256, (500,), generator=torch.Generator().manual_seed(3))


def test_rows_are_those_of_the_model():
    model = Tiny().eval()
    heads = real_heads(Given(model, TEXT, "tiny"), 20, texts=2, seed=0, rows=3)
    assert len(heads) == 8
    starts = torch.randint(0, 481, (2,), generator=torch.Generator().manual_seed(0))
    x = model.embedding(torch.stack([TEXT[s : s + 20] for s in starts]))
    q, k, v = model.layers[0].mixed(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
    s = (q @ k.mT * 8**-0.5).masked_fill(~torch.ones(20, 20).tril().bool(), -torch.inf)
    for head in range(4):
        torch.testing.assert_close(heads[head].logits, s[:, head, -3:], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(heads[head].values, v[:, head], atol=1e-6, rtol=1e-6)
        assert heads[head].width == 8


def test_layers_of_the_library_and_softmax_by_hand_are_taken_too():
    class Ours(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(256, 16)
            self.layer = MultiheadAttention(16, 2, mask=at.causal)

        def forward(self, ids):
            return self.layer(self.embedding(ids)).out

    class ByHandAttention(Ours):
        def forward(self, ids):
            x = self.embedding(ids)[:, None]
            return (x @ x.mT).softmax(-1) @ x

    ours = real_heads(Given(Ours(), TEXT, "ours"), 12, texts=1, seed=0)
    assert [head.logits.shape for head in ours] == [(1, 4, 12)] * 2
    assert ours[0].logits[0, 0].isneginf().sum() == 3
    (by_hand,) = real_heads(Given(ByHandAttention(), TEXT, "by hand"), 12, texts=1, seed=0)
    assert by_hand.values is None


def test_the_embedded_model_is_the_default():
    given = given_embedded()
    assert given.name == EMBEDDED
    one, again = (real_heads(given, 32, texts=1, seed=0) for _ in range(2))
    assert torch.equal(one[3].logits, again[3].logits)


def test_lengths_that_fit():
    given = Given(Tiny(), TEXT, "tiny", longest=100)
    assert given.fitting((16, 64, 128)) == (16, 64)
    assert Given(Tiny(), TEXT, "tiny").fitting((16, 512, 64)) == (16, 64)
    with pytest.raises(ArgumentError, match="model tiny must be long enough for 128 tokens.*100"):
        given.fitting((64, 128))


def test_complaints():
    with pytest.raises(ArgumentTypeError, match=r"model must be a torch.nn.Module, got str"):
        Given("gpt2", TEXT, "gpt2")
    with pytest.raises(ArgumentError, match="tokens must be one row of ids"):
        Given(Tiny(), TEXT[None], "tiny")
