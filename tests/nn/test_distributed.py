"""Two processes over gloo: DDP and FSDP2 give the gradients of one process."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import attentropy as at

nn = at.nn


def layer():
    torch.manual_seed(3)
    return nn.MultiheadAttention(
        16, 4, num_kv_heads=2, qk_norm="rms", scale=nn.SSMax(4), mask=at.causal
    )


def batch():
    return torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(5))


def loss(attended):
    return attended.out.square().mean() - 0.1 * attended.stats.entropy.mean()


def expected():
    single = layer()
    loss(single(batch())).backward()
    return {name: p.grad for name, p in single.named_parameters()}


def check_ddp(rank):
    wrapped = torch.nn.parallel.DistributedDataParallel(layer())
    loss(wrapped(batch().chunk(2)[rank])).backward()
    for name, want in expected().items():
        got = wrapped.module.get_parameter(name).grad
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6, msg=name)


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


def check_fsdp(rank):
    from torch.distributed.fsdp import fully_shard

    model = layer()
    fully_shard(model)
    loss(model(batch().chunk(2)[rank])).backward()
    for name, want in expected().items():
        got = model.get_parameter(name).grad.full_tensor()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6, msg=name)
    torch.optim.AdamW(model.parameters(), 1e-3).step()


def work(rank, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    try:
        check_ddp(rank)
        check_adaptive_scales_agree(rank)
        check_fsdp(rank)
    finally:
        dist.destroy_process_group()


def test_two_processes():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (port,), nprocs=2)
