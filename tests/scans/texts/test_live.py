import pytest
import torch

from attentropy.core.errors import UnsupportedError
from attentropy.scans.texts.live import LiveText
from attentropy.scans.texts.reading import of_text
from tests.scans.small_llama import llama
from tests.scans.texts.test_view import t5

N = 37
IDS = torch.randint(97, (N,), generator=torch.Generator().manual_seed(3))
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def test_every_row_and_column_is_that_of_eager_attention():
    model = llama()
    with torch.no_grad():
        maps = torch.stack(model(IDS[None], output_attentions=True).attentions)[:, 0].double()
    model.set_attn_implementation("sdpa")
    text = LiveText(of_text(model, IDS))
    for layer in range(2):
        for head in (0, 5):
            rows = torch.stack([text.row((layer, head), i) for i in range(N)])
            columns = torch.stack([text.column((layer, head), i) for i in range(N)], 1)
            torch.testing.assert_close(rows.double(), maps[layer, head], **CLOSE)
            torch.testing.assert_close(columns.double(), maps[layer, head], **CLOSE)
    look = text.look((1, 4), 20)
    largest = maps[1, 4, 20].topk(16)
    assert [place for place, _ in look["keys"]["rows"]] == largest.indices.tolist()
    assert look["keys"]["rest"] == pytest.approx(1 - float(largest.values.sum()), abs=1e-5)
    received = maps[1, 4, :, 20]
    wanted = float(received.sum() - received.topk(16).values.sum())
    assert look["readers"]["rest"] == pytest.approx(wanted, abs=1e-5)


def test_two_texts_look_at_each_other():
    model, target = t5(), [0, 5, 6, 7]
    text = LiveText(of_text(model, IDS, target=target))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(IDS[None], decoder_input_ids=torch.tensor([target]), output_attentions=True)
    cross = out.cross_attentions[0][0].double()
    torch.testing.assert_close(text.row((2, 1), N + 2).double(), cross[1, 2], **CLOSE)
    torch.testing.assert_close(text.column((2, 1), 9).double(), cross[1, :, 9], **CLOSE)
    assert text.row((2, 1), 9) is None
    assert text.look((2, 1), 9)["keys"] == {"rows": [], "rest": None}
    places = [place for place, _ in text.look((2, 1), 9)["readers"]["rows"]]
    assert sorted(places) == [N, N + 1, N + 2, N + 3]


def test_the_table_has_means_and_heads_are_asked_for():
    text = LiveText(of_text(llama(), IDS))
    table = text.table()
    assert (set(table.scopes), table.looks) == ({"all", "0", "1"}, {})
    assert set(text.head((1, 2))) == set(text.rows[1])
    assert text.has((1, 5))
    assert not any(text.has(head) for head in ((2, 0), (0, 6), (-1, 0)))


def test_memory_is_bounded():
    with pytest.raises(UnsupportedError, match="too much memory: read fewer tokens"):
        LiveText(of_text(llama(), IDS), memory=10_000)
