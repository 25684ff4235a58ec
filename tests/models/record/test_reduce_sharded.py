"""Watches and monitors of models that processes share are those of the whole model."""

import os

import pytest
import torch

import attentropy as at
from attentropy.core.statistics import NAMES
from tests.processes import spawn

IDS = torch.arange(60).view(2, 30) * 7 % 97


@pytest.fixture
def folder(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return str(tmp_path)


def loaded(folder, **options):
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)


def numbers(rows):
    """Every statistic but the likeness of twins, which a rank seeks among its own heads."""
    names = [name for name in NAMES if name != "likeness"]
    return [(row.layer, row.head, row.heads, *(row[name] for name in names)) for row in rows]


def watched(model, ids):
    with torch.no_grad(), at.watch(model) as w:
        model(ids)
    return w


def sampled(model, ids):
    """The rows of one training step."""
    seen = []
    with at.Monitor(model, every=1, loggers=[lambda m, _: seen.append(m.rows)], alarms=[]) as m:
        model.train()
        loss = model(ids, labels=ids).loss
        loss.backward()
        m.step(loss=loss)
    return [numbers(rows) for rows in seen]


def tensor_parallel(rank, folder):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    model = loaded(folder, tp_plan="auto")
    assert model._tp_size == 2
    w = watched(model, IDS)
    assert {row.heads for row in w.heads()} == {2}
    w.reduce()
    return numbers(w.heads()), sampled(model, IDS)


def fully_sharded(rank, folder):
    from torch.distributed.fsdp import fully_shard

    model = loaded(folder)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    mine = IDS[rank : rank + 1]
    w = watched(model, mine)
    w.reduce()
    return numbers(w.heads()), sampled(model, mine)


@pytest.mark.slow
@pytest.mark.parametrize("work", [tensor_parallel, fully_sharded])
def test_rows_are_those_of_the_whole_model(work, folder):
    model = loaded(folder)
    want = numbers(watched(model, IDS).heads())
    found = spawn(work, 2, folder)
    for rank, one in enumerate(found):
        assert not isinstance(one, str), one
        rows, samples = one
        assert len(samples) == (rank == 0)
        for got in (rows, *samples):
            assert [row[:3] for row in got] == [row[:3] for row in want]
            torch.testing.assert_close(
                torch.tensor([row[3:] for row in got]),
                torch.tensor([row[3:] for row in want]),
                rtol=1e-5,
                atol=1e-6,
                equal_nan=True,
            )
