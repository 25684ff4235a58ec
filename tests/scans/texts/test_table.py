import numpy as np
import pytest
import torch

from attentropy.scans.texts.table import table_of
from attentropy.scans.texts.token_rows import ROW_STATISTICS
from attentropy.scans.texts.view import text_view
from tests.scans.small_llama import llama
from tests.scans.texts.test_packing import words

N = 41


@pytest.fixture(scope="module")
def view():
    ids = torch.randint(97, (N,), generator=torch.Generator().manual_seed(5))
    return text_view(llama(), ids, label=lambda token: f" w{token}")


def test_payload_holds_what_was_measured(view):
    table = table_of(view)
    assert set(table.looks) == {f"{layer}.{head}" for layer, head in view.heads}
    assert set(table.scopes) == {"all", "0", "1", *table.looks}
    look = table.looks["1.4"]
    at = view.looks[1].heads.index(4)
    weights = words(look["weights"], "<f2").reshape(16, N).T.astype(np.float64)
    assert np.abs(weights - view.looks[1].weights[at].numpy()).max() < 5e-4
    assert (
        words(look["keys"], "<u2").reshape(16, N).T[20] == view.looks[1].keys[at, 20].numpy()
    ).all()
    mean = torch.cat([rows["entropy"] for rows in view.rows]).mean(0).numpy()
    got = words(table.scopes["all"]["entropy"], "<f2").astype(np.float64)
    assert np.abs(got - mean).max() < 8e-3 * mean.max()


def test_heads_without_room_are_counted(view):
    table = table_of(view, room=1)
    assert len(table.looks) == 1
    assert table.unshown == 11
    assert set(table.scopes["all"]) == set(ROW_STATISTICS)


def test_generated_tokens_have_a_row_of_all_heads():
    model = llama()
    model.generation_config.eos_token_id = None
    view = text_view(model, torch.arange(3, 12), generate=5)
    table = table_of(view)
    assert (len(table.tokens), table.generated.start) == (14, 9)
    assert table.generated.layers == [(row.place, 6) for row in view.layers]
    got = words(table.generated.numbers["entropy"], "<f2").reshape(5, 12).astype(np.float64)
    wanted = np.array([np.concatenate(row.entropy) for row in view.generated])
    assert np.abs(got - wanted).max() < 2e-3
    # the row of a generated token is that of the query before it
    told = torch.stack([rows["entropy"][:, 8:13] for rows in view.rows]).flatten(0, 1).T
    np.testing.assert_allclose(wanted, told.numpy(), atol=2e-4)
    surprise = words(table.generated.surprise, "<f2").astype(np.float64)
    np.testing.assert_allclose(surprise, view.surprise[8:13].numpy(), atol=5e-3)


def test_half_a_character_can_be_written():
    view = text_view(llama(), torch.arange(3, 12), label=lambda token: "\ud83d")
    assert table_of(view).tokens[0].encode() == b"?"
