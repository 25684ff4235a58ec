import pytest
import torch
from torch import nn

from attentropy.models.progress import Expected, ReadingCost, blocks, counted
from tests.extensions.small_models import grouped_llama
from tests.listeners import Heard


def test_work_is_told_layer_by_layer_and_sums_to_what_was_said():
    model, heard = grouped_llama(), Heard()
    layers = len(model.model.layers)
    ids = torch.zeros(2, 24, dtype=torch.long)
    with counted(model, heard, work=1000, tokens=96):
        model(ids)
        assert len(heard.steps) == layers
        assert heard.done == pytest.approx(500, abs=1)
        model(ids[:, :12])
        assert heard.done == pytest.approx(750, abs=1)
    assert heard.done == 1000
    assert not any(layer._forward_hooks for layer in model.model.layers)


def test_reading_more_than_expected_tells_no_more_than_the_work():
    model, heard = grouped_llama(), Heard()
    with counted(model, heard, work=10, tokens=8):
        model(torch.zeros(1, 32, dtype=torch.long))
    assert heard.done == 10


def test_a_failure_takes_the_hooks_away_and_tells_nothing_more():
    model, heard = grouped_llama(), Heard()
    with pytest.raises(KeyboardInterrupt), counted(model, heard, work=10, tokens=8):
        raise KeyboardInterrupt
    assert heard.done == 0
    assert not any(layer._forward_hooks for layer in model.model.layers)


def test_a_model_without_a_list_of_layers_is_told_of_at_the_end():
    model, heard = nn.Linear(3, 3), Heard()
    assert blocks(model) == []
    with counted(model, heard, work=7, tokens=0):
        model(torch.zeros(3))
        assert heard.steps == []
    assert heard.steps == [7]


def test_late_pieces_of_a_text_count_more_and_a_new_text_begins_anew():
    model, heard = grouped_llama(), Heard()
    ids, cost = torch.zeros(1, 16, dtype=torch.long), ReadingCost(model)
    cost.balance = 32.0
    with counted(model, heard, work=3000, tokens=96, cost=cost, length=32):
        for text in range(2):
            before, cache = heard.done, None
            for _ in range(2):
                cache = model(ids, past_key_values=cache, use_cache=True).past_key_values
                parts = heard.done - before
                before = heard.done
                # 16 tokens at (1 + 8 / 16) and at (1 + 24 / 16) keys' worth, of twice 32
                assert parts == pytest.approx((375, 625)[cache.get_seq_length() > 16], abs=2), text
        assert heard.done == pytest.approx(2000, abs=2)
    assert heard.done == 3000


def test_attention_costs_more_in_longer_texts():
    model = grouped_llama()
    cost, config = ReadingCost(model), model.config
    size = sum(p.numel() for p in model.parameters())
    assert cost.balance == size / (config.hidden_size * config.num_hidden_layers)
    alone = cost.of(100, length=0)
    assert (alone, cost.of(100, length=round(cost.balance))) == (100, pytest.approx(200, abs=1))


def test_work_on_a_condition_enters_the_total_only_if_it_is_needed():
    for needed, total in ((True, 130), (False, 100)):
        heard = Heard()
        heard.begin(90)
        expected = Expected(heard)
        expected.add(10)
        expected.perhaps(30, "if it breaks past 64")
        assert (heard.total, heard.possible) == (100, (30, "if it breaks past 64"))
        expected.decide(needed=needed)
        assert (heard.total, heard.possible) == (total, (0, ""))
        expected.comes(25)  # more than was expected without the condition
        assert heard.total == max(total, 115)
        expected.ends()
        assert heard.total == 115
