"""Two processes over gloo: DDP and FSDP2 give the gradients of one process."""

import copy
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import fully_shard

import attentropy as at
from tests.nn.every_layer import LAYERS

nn = at.nn
CLIPPED = (
    lambda: nn.MultiheadAttention(16, 4, num_kv_heads=2),
    lambda: nn.MultiheadAttention(16, 4, kdim=15),
    lambda: nn.EntropyInvariantAttention(16, 4),
)


def layer(name):
    torch.manual_seed(3)
    return LAYERS[name]().train()


def batch():
    return torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(5))


def loss(attended):
    return attended.out.square().mean() - 0.1 * attended.stats.collision.mean()


def expected(name):
    single = layer(name)
    loss(single(batch())).backward()
    return {name: p.grad for name, p in single.named_parameters()}


def check_ddp(rank, name):
    wrapped = torch.nn.parallel.DistributedDataParallel(layer(name))
    loss(wrapped(batch().chunk(2)[rank])).backward()
    for part, want in expected(name).items():
        got = wrapped.module.get_parameter(part).grad
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6, msg=f"{name}: {part}")


def check_adaptive_scales_agree(rank):
    """Buffers of rank 0 are broadcast, so ranks with other data keep one scale."""
    model = nn.MultiheadAttention(16, 4, scale=nn.AdaptiveScale(1.0))
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    used = []
    for _ in range(4):
        wrapped((1 + rank) * batch())
        used.append(model.scale.gain.clone())
    mine = torch.stack(used)
    other = mine.clone()
    dist.broadcast(other, 0)
    torch.testing.assert_close(mine, other)
    assert not torch.equal(mine[0], mine[-1])


def fsdp_factor(rank):
    """What FSDP2 multiplies gradients by: torch 2.8 adds them up over gloo and divides by nothing."""
    plain = torch.nn.Linear(16, 1, bias=False)
    torch.nn.init.ones_(plain.weight)
    fully_shard(plain)
    plain(torch.ones(1, 16)).sum().backward()  # a gradient of 1 on every rank
    return float(plain.weight.grad.full_tensor().mean())


def check_fsdp(rank, name, factor):
    model = layer(name)
    fully_shard(model)
    loss(model(batch().chunk(2)[rank])).backward()
    for part, want in expected(name).items():
        got = model.get_parameter(part).grad.full_tensor() / factor
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6, msg=f"{name}: {part}")
    torch.optim.AdamW(model.parameters(), 1e-3).step()


def check_clip(rank, build):
    """Ranks with other data clip by the largest logit of all, whole and sharded."""
    torch.manual_seed(3)
    single = build()
    replica, sharded = copy.deepcopy(single), copy.deepcopy(single)
    fully_shard(sharded)
    nn.qk_clip_(single, crossed(single, 2 * batch()), 0.3)
    for model in (replica, sharded):
        factor = nn.qk_clip_(model, crossed(model, (1 + rank) * batch()), 0.3)
        assert (factor < 1).any()
    for part, want in single.named_parameters():
        torch.testing.assert_close(replica.get_parameter(part), want)
        torch.testing.assert_close(sharded.get_parameter(part).full_tensor(), want)


def crossed(model, x):
    """Statistics of a training step; FSDP2 has its parameters in shards after the backward pass."""
    attended = model(x, x[..., : getattr(model, "kdim", 16)], x)
    loss(attended).backward()
    return attended.stats


def work(rank, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        factor = fsdp_factor(rank)
        assert factor == 1 or torch.__version__.startswith("2.8.")
        for name in LAYERS:
            check_ddp(rank, name)
            check_fsdp(rank, name, factor)
        check_adaptive_scales_agree(rank)
        for build in CLIPPED:
            check_clip(rank, build)
        dist.barrier()  # nobody leaves while another still reads
    finally:
        dist.destroy_process_group()


def test_two_processes():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (port,), nprocs=2)
