import torch

from attentropy.scans.loading.inputs import of
from attentropy.scans.texts.beginning import ROOM, TOKENS, beginning
from attentropy.scans.texts.records import check
from tests.scans.small_llama import llama


def test_a_scan_shows_the_first_tokens():
    model = llama()
    tokens = of(torch.arange(500) % 97, model)
    table = beginning(model, tokens, label=str, length=48)
    check(table)
    assert table.tokens == [str(token) for token in range(48)]
    assert table.left == 452
    assert len(table.looks) == 12
    assert sum(len(text) for look in table.looks.values() for text in look.values()) < ROOM
    assert TOKENS == 256


def test_windows_of_a_text_are_not_shown():
    class Cut(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(97, 8)
            self.attn = torch.nn.Linear(8, 8)

        def forward(self, ids):
            q = self.attn(self.embed(ids)).view(2, 1, -1, 8)
            return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    model = Cut()
    assert beginning(model, of(torch.arange(50), model), label=str, length=48) is None
