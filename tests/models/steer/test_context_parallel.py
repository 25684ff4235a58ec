"""A transformers model whose sequences are spread over ranks computes what it computes whole."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import attentropy as at
from attentropy.models.watch import NothingRecorded
from tests.models.steer.test_coverage import HandAttention
from tests.processes import spawn


def build(**options):
    from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    sizes = {
        "vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    }  # fmt: skip
    if options:
        return MistralForCausalLM(MistralConfig(**sizes, **options)).eval()
    return LlamaForCausalLM(LlamaConfig(**sizes)).eval()


def logits(model, tokens, **options):
    return model(tokens, use_cache=False, **options).logits


def check(spread, **steering):
    tokens = torch.randint(50, (2, 23), generator=torch.Generator().manual_seed(0))
    whole, parted = build(), build()
    if steering:
        at.steer(whole, **steering)
    handle = at.steer(parted, context_parallel=spread, **steering)
    layout = at.distributed.layouts.spread(spread).layout
    want, got = logits(whole, tokens), logits(parted, layout.shard(tokens))
    torch.testing.assert_close(got, layout.shard(want), atol=2e-5, rtol=1e-4)
    want.square().sum().backward()
    got.square().sum().backward()
    for a, b in zip(parted.parameters(), whole.parameters(), strict=True):
        dist.all_reduce(a.grad)
        torch.testing.assert_close(a.grad, b.grad, atol=1e-3, rtol=1e-3)
    handle.undo()
    torch.testing.assert_close(logits(parted, tokens), logits(build(), tokens))


def work(rank):
    mesh = init_device_mesh("cpu", (2,))
    check(at.zigzag.over(mesh))
    check(mesh, scale=at.LogLengthFrom(4))
    tokens = torch.zeros(1, 12, dtype=torch.int64)
    model = HandAttention(hand=True)
    handle = at.steer(model, context_parallel=mesh)
    with pytest.raises(at.UnsupportedError, match="cannot spread attention computed by hand"):
        model(torch.zeros(1, 12, 8))
    handle.undo()
    model = build()
    at.steer(model, context_parallel=mesh)
    plain = logits(model, tokens)
    message = "nothing was recorded of .* where a rank has only some keys"
    with pytest.raises(NothingRecorded, match=message), at.watch(model):
        assert torch.equal(logits(model, tokens), plain)
    with pytest.raises(at.UnsupportedError, match="takes no mask besides the model's own"):
        at.steer(model, context_parallel=mesh, mask=at.lookback(3))
    return "same"


def test_two_processes():
    assert spawn(work, 2) == ["same", "same"]
