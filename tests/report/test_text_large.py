"""A text of 8,192 tokens and 270 heads, with numbers that do not compress: the page stays small."""

import msgspec
import pytest
import torch

from attentropy.lab.embedded import load_embedded
from attentropy.report.text import text_page
from attentropy.scans.texts.sides import Side
from attentropy.scans.texts.table import table_of
from attentropy.scans.texts.token_rows import ROW_STATISTICS, Looks
from attentropy.scans.texts.view import TextView, choose, text_view

TOKENS, LAYERS, HEADS = 8192, 30, 9

pytestmark = pytest.mark.slow


def made_up():
    draw = torch.Generator().manual_seed(0)
    row = text_view(load_embedded(), "To be, or not", most_heads=1).layers[0]
    layers = [
        msgspec.structs.replace(row, layer=f"model.layers.{i}.self_attn", heads=HEADS, index=i)
        for i in range(LAYERS)
    ]
    rows = [
        {name: 3 * torch.rand(HEADS, TOKENS, generator=draw) for name in ROW_STATISTICS}
        for _ in layers
    ]
    heads = choose(rows, 64)

    def look(numbers):
        shape = (len(numbers), TOKENS, 16)
        weights = torch.rand(shape, generator=draw).sort(-1, descending=True).values / 16
        keys = (torch.arange(TOKENS)[:, None] * torch.rand(shape, generator=draw)).long()
        rest = torch.rand(shape[:2], generator=draw)
        return Looks(tuple(numbers), keys, weights, rest, keys, weights, rest)

    looks = {i: look(sorted(h for layer, h in heads if layer == i)) for i in range(LAYERS)}
    words = [" the", " model", "ing", " of", ".", " attention", "\n"]
    labels = [words[i] for i in torch.randint(len(words), (TOKENS,), generator=draw).tolist()]
    surprise = 5 * torch.rand(TOKENS - 1, generator=draw)
    ids = torch.zeros(TOKENS, dtype=torch.int64)
    sides = [Side("text", 0, TOKENS)]
    return TextView(ids, labels, layers, rows, surprise, heads, looks, sides=sides)


def test_the_page_has_at_most_five_megabytes_and_opens(open_page, tmp_path):
    path = tmp_path / "text.html"
    path.write_text(text_page(table_of(made_up()), name="synthetic"), encoding="utf-8")
    assert path.stat().st_size <= 5_000_000
    opened = open_page(path)
    opened.page.wait_for_selector("#text[data-painted]")
    assert opened.page.locator(".token").count() == TOKENS
    opened.page.click('.token[data-token="300"]')
    opened.page.wait_for_selector('#text[data-painted*=" 300 keys "]')
    assert opened.errors == []
