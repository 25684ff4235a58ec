"""A model whose heads two processes share is measured, steered and calibrated as one process does."""

import pickle

import pytest
import torch
from torch import nn

import attentropy as at
from attentropy.core.errors import ArgumentError
from attentropy.core.statistics import NAMES
from attentropy.distributed.groups import Peers, peers
from attentropy.distributed.team import Team
from attentropy.models.intercept.candidates import gathering, is_cut
from attentropy.models.tensor_parallel import SharedHeads, shared_heads
from attentropy.scans.scan import scan
from attentropy.scans.texts.view import text_view
from tests.processes import spawn

IDS = torch.arange(360) * 7 % 97
PER_HEAD = [0.5, 1.0, 1.5, 2.0]
SIZES = {
    "vocab_size": 98,
    "hidden_size": 48,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}


@pytest.fixture
def folder(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=98,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=20,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return str(tmp_path)


def loaded(folder, **options):
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()


def everything(model):
    """What a scan, a plan, steering and a view of a text say."""
    found = scan(model, IDS, lengths=[10, 20, 40], tokens_per_length=80, calibrate=True)
    handle = at.steer(model, temperature=PER_HEAD)
    with torch.no_grad():
        steered = model(IDS[None, :20]).logits
    handle.undo()
    handle = at.steer(model, found.plan)
    with torch.no_grad():
        planned = model(IDS[None, :40]).logits
    handle.undo()
    view = text_view(model, IDS[:24], most_heads=3)
    return {
        "rows": [row for one in found.measures for row in one.rows],
        "profiles": [p.entropy for one in found.measures for p in one.profiles],
        "loss": [one.loss for one in found.measures],
        "findings": [(one.name, one.heads) for one in found.findings],
        "maps": sorted(found.maps.data),
        "factors": found.plan.factors,
        "judged": found.plan.judged.change.difference,
        "steered": steered,
        "planned": planned,
        "looks": {layer: look.weights for layer, look in view.looks.items()},
        "heads": view.heads,
        "processes": found.processes,
    }


def by_heads(rank, folder):
    from transformers.distributed import DistributedConfig

    model = loaded(folder, distributed_config=DistributedConfig(tp_plan="auto", tp_size=2))
    shared = shared_heads(model)
    assert (shared.size, shared.peers.rank) == (2, rank)
    with pytest.raises(ArgumentError, match="whose heads 2 processes share"):
        scan(model, IDS, lengths=[10], team=Team(Peers(None, rank, 2)))
    return pickle.dumps(everything(model))  # the queue would share memory with an ended process


@pytest.mark.slow
def test_all_that_is_said_of_heads_is_that_of_one_process(folder):
    want = everything(loaded(folder))
    assert want.pop("processes") == 1
    for one in spawn(by_heads, 2, folder):
        assert not isinstance(one, str), one
        got = pickle.loads(one)
        assert got.pop("processes") == 2
        same(got, want)


def same(got, want):
    for name in ("findings", "maps", "heads"):
        assert got[name] == want[name], name
    assert [(r.layer, r.head, r.heads, r.twin) for r in got["rows"]] == [
        (r.layer, r.head, r.heads, r.twin) for r in want["rows"]
    ]
    numbers = [torch.tensor([[r[n] for n in NAMES] for r in x["rows"]]) for x in (got, want)]
    pairs = [numbers, *((got[n], want[n]) for n in ("loss", "steered", "planned", "judged"))]
    pairs += [(got["looks"][layer], want["looks"][layer]) for layer in want["looks"]]
    pairs += [
        (torch.tensor(got["factors"][n]), torch.tensor(f)) for n, f in want["factors"].items()
    ]
    for pair in pairs:
        a, b = (torch.as_tensor(x) for x in pair)
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5, equal_nan=True)


def test_a_process_has_its_part_of_what_is_given_for_every_head():
    shared = SharedHeads(Peers(None, 1, 2))
    assert shared.own((1, 2, 3, 4)) == (3, 4)
    assert shared.own(torch.arange(6)).tolist() == [3, 4, 5]


def slopes(rank):
    """Gradients of what one process has a part of, and of what all use."""
    shared = SharedHeads(peers())
    x, y = (torch.arange(4.0, requires_grad=True) for _ in range(2))
    (shared.own(x) * (10 + rank)).sum().backward()
    (shared.replicated(y) * (10 + rank)).sum().backward()
    return x.grad.tolist(), y.grad.tolist()


@pytest.mark.slow
def test_gradients_are_those_of_all_heads():
    assert spawn(slopes, 2) == [([10.0, 10.0, 11.0, 11.0], [21.0] * 4)] * 2


def gathering_model(kind):
    import transformers

    config = getattr(transformers, f"{kind}Config")(**SIZES)
    torch.manual_seed(0)
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


@pytest.mark.parametrize("kind", ["Olmo2", "Phi3"])
def test_models_that_gather_their_queries_are_known_by_their_plan(kind):
    model = gathering_model(kind)
    assert set(gathering(model)) == {layer.self_attn for layer in model.model.layers}
    assert not set(gathering(gathering_model("Llama")))


def gathered(rank, folder):
    """Rows of all heads in three ways, and logits with a temperature for each head."""
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    options = {"distributed_config": DistributedConfig(tp_plan="auto", tp_size=2)}
    options = {} if rank is None else options
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, **options).eval()
    ids = IDS[:60].view(2, 30)
    handle = at.steer(model, temperature=[*PER_HEAD, 1.0, 1.0])
    with torch.no_grad(), at.watch(model) as own:
        logits = model(ids).logits
    with torch.no_grad(), at.watch(model).of_all_heads() as every:
        model(ids)
    handle.undo()
    own.reduce()
    rows = [[(r.layer, r.head, r.entropy, r.max_logit) for r in w.heads()] for w in (own, every)]
    return rows, logits.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Olmo2", "Phi3"])
def test_models_that_gather_their_queries_have_each_head_once(kind, tmp_path):
    gathering_model(kind).save_pretrained(tmp_path)
    rows, logits = gathered(None, tmp_path)
    assert len(rows[0]) == 12
    for one in spawn(gathered, 2, tmp_path):
        assert not isinstance(one, str), one
        for mine, theirs in zip(one[0], rows, strict=True):
            assert [row[:2] for row in mine] == [row[:2] for row in theirs]
            numbers = [torch.tensor([row[2:] for row in x]) for x in (mine, theirs)]
            torch.testing.assert_close(*numbers, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(torch.tensor(one[1]), torch.tensor(logits))


def test_a_model_in_one_process_shares_nothing():
    assert shared_heads(nn.Linear(2, 2)) is None
    assert not is_cut(nn.Linear(2, 2))
