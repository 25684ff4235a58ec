"""QKClip: factors of all heads, whatever processes hold, with one message per step."""

import copy

import pytest
import torch
import torch.distributed as dist

import attentropy as at
from attentropy.core.errors import ArgumentError
from attentropy.training.clipping import QKClip
from tests.processes import spawn

IDS = torch.arange(160).view(4, 40) * 7 % 97
LIMIT = 0.05


def llama(**more):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=98,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_bias=True,
        **more,
    )
    return LlamaForCausalLM(config).train()


def largest(model, ids):
    """The largest logit of each head, from queries and keys."""
    found = []

    def keep(module, query, key, value, mask, scaling, **_):
        k, v = (x.repeat_interleave(2, 1) for x in (key, value))
        s = (query @ k.mT * scaling).masked_fill(torch.ones(40, 40).triu(1).bool(), -torch.inf)
        found.append(s.amax((0, 2, 3)))
        return (s.softmax(-1) @ v).transpose(1, 2), None

    from transformers import AttentionInterface

    AttentionInterface.register("kept", keep)
    model.set_attn_implementation("kept")
    with torch.no_grad():
        model(ids)
    model.set_attn_implementation("sdpa")
    return torch.stack(found)


def test_scores_change_by_the_factor():
    model = llama()
    before = largest(model, IDS)
    clip = QKClip(model, LIMIT)
    for part in IDS.split(1):  # passes that are added up
        model(part, labels=part).loss.backward()
    factors = torch.stack(list(clip.step().values()))
    clip.close()
    torch.testing.assert_close(factors, LIMIT / before.clamp(min=LIMIT))
    assert (factors < 1).any()
    first = largest(model, IDS)[0]  # later layers read what this one changed
    torch.testing.assert_close(first, factors[0] * before[0])
    assert clip.step()["model.layers.0.self_attn"].tolist() == [1.0] * 4


def test_what_cannot_be_clipped_is_named():
    model = torch.nn.ModuleDict(
        {
            "plain": at.nn.MultiheadAttention(16, 4),
            "normed": at.nn.MultiheadAttention(16, 4, qk_norm="rms"),
        }
    )
    clip = QKClip(model, 1.0)
    clip.close()
    assert list(clip.left_alone) == ["normed"]
    assert "without qk_norm" in clip.left_alone["normed"]
    with pytest.raises(ArgumentError, match="model must be one with layers of attentropy.nn"):
        QKClip(torch.nn.Linear(2, 2), 1.0)


def test_logits_that_are_not_finite_are_refused():
    layer = at.nn.MultiheadAttention(8, 2).train()
    clip = QKClip(layer, 1.0)
    layer(torch.full((1, 3, 8), torch.nan))
    with pytest.raises(ArgumentError, match="below inf, not NaN"):
        clip.step()
    clip.close()


def trained(model, parts):
    """Accumulation with recomputation, then one step; the number of messages in it."""
    model.gradient_checkpointing_enable()
    clip = QKClip(model, LIMIT)
    for part in parts:
        model(part, labels=part, use_cache=False).loss.backward()
    calls, plain = [], dist.all_reduce
    dist.all_reduce = lambda *x, **o: calls.append(x[0].numel()) or plain(*x, **o)
    clip.step()
    dist.all_reduce = plain
    clip.close()
    return calls


def full(model):
    whole = {}
    for name, p in model.named_parameters():
        if ".q_proj" in name or ".k_proj" in name:
            whole[name] = (p.full_tensor() if hasattr(p, "full_tensor") else p).detach()
    return whole


def everywhere(rank, ranks, folder):
    from torch.distributed.fsdp import fully_shard
    from transformers import LlamaForCausalLM
    from transformers.distributed import DistributedConfig

    single = llama()
    trained(single, IDS.split(1))
    want, mine = full(single), IDS.chunk(ranks)[rank]
    sharded = llama()
    for layer in sharded.model.layers:
        fully_shard(layer)
    fully_shard(sharded)
    models = {"fsdp": (sharded, mine.split(1))}
    if ranks == 2:
        config = DistributedConfig(tp_plan="auto", tp_size=2)
        cut = LlamaForCausalLM.from_pretrained(folder, distributed_config=config, dtype="float32")
        models["tp"] = cut.train(), IDS.split(1)
    for name, (model, parts) in models.items():
        assert trained(model, parts) == [8], name  # one number for each head of two layers
        for part, value in full(model).items():
            torch.testing.assert_close(value, want[part], msg=f"{name}: {part}")
    return "same"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_processes_agree_with_one_message(ranks, tmp_path):
    llama().save_pretrained(tmp_path)
    found = spawn(everywhere, ranks, ranks, str(tmp_path))
    assert found == ["same"] * ranks, found[0]


def test_copies_have_clips_of_their_own():
    model = llama()
    clip = QKClip(model, 1e9)
    other = copy.deepcopy(model)
    other(IDS)
    assert all((x == 1).all() for x in clip.step().values())
    clip.close()
