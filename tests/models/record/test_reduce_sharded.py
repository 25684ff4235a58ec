"""Watches and monitors of models that processes share are those of the whole model."""

import pytest
import torch

import attentropy as at
from attentropy.core.statistics import NAMES
from tests.processes import spawn

IDS = torch.arange(120).view(4, 30) * 7 % 97


@pytest.fixture
def folder(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return str(tmp_path)


def loaded(folder, **options):
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)


def by_heads(folder, ranks):
    from transformers.distributed import DistributedConfig

    return loaded(folder, distributed_config=DistributedConfig(tp_plan="auto", tp_size=ranks))


def numbers(rows):
    """Every statistic but the likeness of twins, which a rank seeks among its own heads."""
    names = [name for name in NAMES if name != "likeness"]
    return [(row.layer, row.head, row.heads, *(row[name] for name in names)) for row in rows]


def watched(model, *batches):
    with torch.no_grad(), at.watch(model) as w:
        for ids in batches:
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


def tensor_parallel(rank, ranks, folder):
    model = by_heads(folder, ranks)
    w = watched(model, IDS)
    assert {row.heads for row in w.heads()} == {2}
    w.reduce()
    return [numbers(w.heads())], sampled(model, IDS)


def fully_sharded(rank, ranks, folder):
    from torch.distributed.fsdp import fully_shard

    model = loaded(folder)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    mine = IDS.chunk(ranks)[rank]
    w = watched(model, mine)
    w.reduce()
    return [numbers(w.heads())], sampled(model, mine)


class Stage(torch.nn.Module):
    """Some layers of a llama, under the names that they have in it."""

    def __init__(self, whole, rank, ranks):
        super().__init__()
        self.model, self.lm_head = whole.model, whole.lm_head
        self.first, self.last = rank == 0, rank == ranks - 1
        layers, each = self.model.layers, len(self.model.layers) // ranks
        self.model.layers = torch.nn.ModuleDict(
            {str(i): layers[i] for i in range(rank * each, (rank + 1) * each)}
        )

    def forward(self, x):
        x = self.model.embed_tokens(x) if self.first else x
        places = torch.arange(x.shape[1])[None]
        turned = self.model.rotary_emb(x, places)
        for layer in self.model.layers.values():
            x = layer(x, attention_mask=None, position_embeddings=turned, position_ids=places)
        return self.lm_head(self.model.norm(x)) if self.last else x


def pipelined(rank, ranks, folder):
    """Stages of torch's pipelines, two rows in a microbatch, in double precision."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    stage = Stage(loaded(folder).double(), rank, ranks)
    step = ScheduleGPipe(
        PipelineStage(stage, rank, ranks, torch.device("cpu")),
        n_microbatches=2,
        loss_fn=lambda out, ids: torch.nn.functional.cross_entropy(
            out[:, :-1].flatten(0, 1), ids[:, 1:].flatten()
        ),
    ).step
    given, told = ((IDS,) if rank == 0 else ()), ({"target": IDS} if stage.last else {})
    step(*given, **told)  # torch finds shapes with tensors that hold anything
    with at.watch(stage) as w:
        step(*given, **told)
    w.reduce()
    rows = numbers(w.heads())
    w.clear()
    assert not w.places()
    seen = []
    with at.Monitor(stage, every=1, loggers=[lambda m, _: seen.append(m.rows)], alarms=[]) as m:
        stage.train()
        losses = []
        step(*given, **told, losses=losses)
        m.step(loss=torch.stack(losses).mean() if losses else None)
    return [rows, numbers(m.history[0].rows)], [numbers(rows) for rows in seen]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "ranks"),
    [(tensor_parallel, 2), (fully_sharded, 2), (fully_sharded, 4), (pipelined, 2), (pipelined, 4)],
)
def test_rows_are_those_of_the_whole_model(work, ranks, folder):
    model, parts, bound = loaded(folder), [IDS], {"rtol": 1e-5, "atol": 1e-6}
    if work is pipelined:  # calls of the same rows: then nothing rounds otherwise
        model, parts, bound = model.double(), IDS.chunk(2), {"rtol": 1e-12, "atol": 1e-12}
    want = numbers(watched(model, *parts).heads())
    found = spawn(work, ranks, ranks, folder)
    for rank, one in enumerate(found):
        assert not isinstance(one, str), one
        rows, samples = one
        assert len(samples) == (rank == 0)
        for got in (*rows, *samples):
            assert [row[:3] for row in got] == [row[:3] for row in want]
            torch.testing.assert_close(
                torch.tensor([row[3:] for row in got]),
                torch.tensor([row[3:] for row in want]),
                equal_nan=True,
                **bound,
            )
