"""Every rank gives the rows of one process: values, statistics and gradients."""

import os
import time

import pytest
import torch
import torch.distributed as dist

import attentropy as at
from attentropy.distributed import transport
from tests import cases
from tests.processes import spawn

NOISY = ("dropout", "gumbel", "hard gumbel", "l2")
OTHER = ("hard", "straight through", "decay", "entmax", "sparsemax", "softpick")
HARDEST = ["log length", "additive", "bias", "relative far", "alibi", "l2", "everything"]
RAGGED = cases.Shape()
FEW = cases.Shape(batch=1, queries=3, keys=3)
NO_KEYS = cases.Shape(queries=17, keys=0)


def every_case(shape):
    found = {f"mask {name}": {"mask": mask} for name, mask in cases.masks(shape).items()}
    found |= {k: v for k, v in cases.options(shape).items() if k not in NOISY + OTHER}
    table = cases._random(shape.heads, 9)
    found["relative far"] = {"bias": at.Relative(table), "mask": ~at.causal}
    found["l2"] = {"weights": at.L2(at.ReluSquared()), "mask": at.causal}
    found["everything"] = {
        "mask": at.causal & at.lookback(9),
        "scale": at.Mixed(beta=0.4),
        "bias": at.Relative(table),
        "softcap": 2.0,
        "sink": cases._random(shape.heads),
        "score": at.Cosine(),
    }
    return found


def shared(options):
    """The tensors of options that all ranks hold, as leaves."""
    found = []
    for value in options.values():
        if isinstance(value, at.Relative):
            found.append(value.table)
        elif isinstance(value, at.Additive):
            found += [value.query_weight, value.key_weight, value.vector]
        elif isinstance(value, torch.Tensor) and value.is_floating_point():
            found.append(value)
    return [x.requires_grad_() for x in found]


def loss(attended, rows, whole):
    """A loss that uses every differentiable result, a sum over rows."""
    out, stats = attended
    total = (out.double() * out.double().sin().detach()).sum()
    for i, name in enumerate(cases.FLOWING):
        value = getattr(stats, name)
        if value is not None:
            weight = torch.linspace(-1, 1 + i, max(1, whole))[:whole][rows].double()
            total = total + (value.double().where(stats.visible > 0, 0.0) * weight).sum()
    return total


def compute(attend, tensors, options, rows, whole):
    inputs = [*(x.detach().requires_grad_() for x in tensors), *shared(options)]
    attended = attend(*inputs[:3], **options)
    grads = torch.autograd.grad(loss(attended, rows, whole), inputs, allow_unused=True)
    return attended, [
        torch.zeros_like(x) if g is None else g for x, g in zip(inputs, grads, strict=True)
    ]


def of_rank(layout, x, dim=2):
    return layout.shard(x.detach(), dim=dim)


def compare(got, want, layout, *, atol, rtol):
    """What this rank got against its part of what one process got."""
    (out, stats), grads = got
    (whole, whole_stats), whole_grads = want
    same = {"atol": atol, "rtol": rtol}
    torch.testing.assert_close(out, of_rank(layout, whole), **same)
    for name in cases.FIELDS:
        a, b = getattr(stats, name), getattr(whole_stats, name)
        if name in ("max_logit", "argmax") and b is None:
            continue
        assert (a is None) == (b is None), name
        if a is not None:
            torch.testing.assert_close(a, of_rank(layout, b), **same, msg=lambda m, n=name: n + m)
    for g in grads[3:]:
        dist.all_reduce(g)
    parts = [of_rank(layout, g) for g in whole_grads[:3]] + whole_grads[3:]
    for i, (a, b) in enumerate(zip(grads, parts, strict=True)):
        torch.testing.assert_close(
            a, b, atol=10 * atol, rtol=10 * rtol, msg=lambda m, i=i: f"gradient {i}: {m}"
        )


def check_case(rank, shape, options, *, layout, methods, kernel="reference"):
    tensors = shape.tensors()
    rows = torch.arange(shape.queries)
    want = compute(at.attend, tensors, {**options, "kernel": "reference"}, rows, shape.queries)
    mine = of_rank(layout, rows, dim=0)
    local = [of_rank(layout, x) for x in tensors]
    for method in methods:
        how = {**options, "layout": layout, "method": method, "kernel": kernel}
        got = compute(at.ring_attend, local, how, mine, shape.queries)
        compare(got, want, layout, atol=1e-11, rtol=1e-9)


def sweep(rank, ranks):
    """Runs everything in one group of processes; returns the number of cases and the failures."""
    names = list(every_case(RAGGED))
    layout = at.contiguous if ranks == 2 else at.zigzag
    some = names if ranks == 2 else [n for n in names if n.startswith("mask")] + HARDEST
    jobs = [(RAGGED, name, layout, ("ring",), "streaming") for name in some]
    jobs += [(RAGGED, name, at.zigzag, ("gather",), "auto") for name in some[ranks % 3 :: 3]]
    jobs += [(RAGGED, name, at.zigzag, ("ring",), "reference") for name in some[:: 3 * ranks]]
    for small in (FEW, NO_KEYS):
        small_cases = ("plain", "sink", "mask causal")
        jobs += [(small, name, at.zigzag, ("ring", "gather"), "auto") for name in small_cases]
    failed = []
    for shape, name, layout, methods, kernel in jobs:
        try:
            check_case(
                rank,
                shape,
                every_case(shape)[name],
                layout=layout,
                methods=methods,
                kernel=kernel,
            )
        except AssertionError as error:
            failed.append((shape.queries, name, kernel, str(error)[:500]))
    return len(jobs), failed


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_equal_to_one_process(ranks):
    for result in spawn(sweep, ranks, ranks):
        assert not isinstance(result, str), result
        count, failed = result
        assert count > 30
        assert not failed


def naive(q, k, v, mask):
    """Causal attention and entropy in the precision of its inputs, by the textbook."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf)
    p = s.softmax(-1)
    entropy = -(p * p.masked_fill(p == 0, 1.0).log()).sum(-1)
    return p @ v, entropy


def errors(dtype):
    """Largest errors of naive attention on the whole, and of this rank, against float64."""
    shape = cases.Shape(queries=70, keys=70, width=32)
    tensors = [x.detach() for x in shape.tensors(dtype)]
    table = torch.ones(70, 70, dtype=torch.bool).tril()

    def results(inputs, attend):
        leaves = [x.detach().requires_grad_() for x in inputs]
        out, entropy = attend(*leaves)
        total = (out.double() ** 2).sum() + (entropy.double() ** 2).sum()
        return [out, entropy, *torch.autograd.grad(total, leaves)]

    def ring(q, k, v):
        out, stats = at.ring_attend(q, k, v, mask=at.causal, layout=at.zigzag, method="ring")
        return out, stats.entropy

    exact = results([x.double() for x in tensors], lambda *x: naive(*x, table))
    low = results(tensors, lambda *x: naive(*x, table))
    mine = results([of_rank(at.zigzag, x) for x in tensors], ring)
    assert mine[0].dtype == dtype
    assert mine[1].dtype == torch.float32
    gaps = [(a.double() - b).abs().max() for a, b in zip(low, exact, strict=True)]
    own = [
        (a.double() - of_rank(at.zigzag, b)).abs().max() for a, b in zip(mine, exact, strict=True)
    ]
    return [float(x) for x in gaps], [float(x) for x in own]


def check_precision(rank):
    for dtype, room in ((torch.float32, 4.0), (torch.bfloat16, 1.5)):
        budget, got = errors(dtype)
        for one, other in zip(got, budget, strict=True):
            assert one <= room * other, (dtype, got, budget)


def random_parts(n, layout, *, dtype=torch.float32, width=8, grad=True):
    whole = torch.randn(3, 1, 2, n, width, generator=torch.Generator().manual_seed(n))
    return [layout.shard(x.to(dtype), dim=2).requires_grad_(grad) for x in whole]


def check_traffic(rank):
    """B Hk (n / R) (D + Dv) numbers: R - 1 times forward; as many and their gradients backward."""
    block = 1 * 2 * (64 // dist.get_world_size()) * (8 + 8)
    hops = dist.get_world_size() - 1
    for dtype, size, wide in ((torch.float32, 4, 4), (torch.bfloat16, 2, 4), (torch.float64, 8, 8)):
        for method in ("ring", "gather"):
            q, k, v = random_parts(64, at.zigzag, dtype=dtype)
            with transport.metered() as forward:
                out, _ = at.ring_attend(q, k, v, layout=at.zigzag, method=method)
            with transport.metered() as backward:
                out.sum().backward()
            assert forward.sent == hops * block * size, (method, forward.sent)
            assert backward.sent == hops * block * (size + wide), (method, backward.sent)


def parts_computed(mask, layout, n=64):
    from attentropy.attention import attend as attention

    calls, run = [], attention.run
    attention.run = lambda call, kernel: calls.append(call.seen.shape) or run(call, kernel)
    try:
        q, k, v = random_parts(n, layout, grad=False)
        at.ring_attend(q, k, v, layout=layout, mask=mask, method="ring")
    finally:
        attention.run = run
    return sorted(calls)


def check_skips(rank):
    """Hidden blocks are not computed, and what a causal mask leaves is full or causal."""
    ranks = dist.get_world_size()
    assert parts_computed(at.causal, at.contiguous) == ["causal"] + ["full"] * rank
    # every rank has the same work: two diagonals, and as many full parts
    assert parts_computed(at.causal, at.zigzag) == ["causal"] * 2 + ["full"] * (2 * ranks - 1)
    near = at.causal & at.lookback(4)
    assert len(parts_computed(near, at.contiguous)) == (1 if rank == 0 else 2)
    ids = torch.arange(64) // (64 // ranks)
    assert len(parts_computed(at.documents(ids), at.contiguous)) == 1
    far = lambda b, h, q, k: (k < 3) & (q >= 0)  # noqa: E731
    assert len(parts_computed(far, at.contiguous)) == 1


def check_noise(rank):
    """out is linear in v, so <out, g> = <v, dv> if and only if both passes draw the same noise."""
    for options in ({"dropout": 0.4}, {"weights": at.Gumbel(0.7)}):
        torch.manual_seed(rank)
        q, k, v = random_parts(33, at.zigzag, dtype=torch.float64)
        out, stats = at.ring_attend(q, k, v, layout=at.zigzag, mask=at.causal, **options)
        plain, quiet = at.ring_attend(q, k, v, layout=at.zigzag, mask=at.causal)
        g = torch.randn_like(out)
        out.backward(g)
        sides = torch.stack([(out * g).sum(), (v * v.grad).sum()]).detach()
        dist.all_reduce(sides)
        torch.testing.assert_close(sides[0], sides[1])
        assert not torch.allclose(out, plain)
        if "dropout" in options:
            torch.testing.assert_close(stats.entropy, quiet.entropy)


def check_memory(rank):
    """No tensor is larger than a tile of the kernel, or O(n / ranks)."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    from attentropy.kernels.tiled import tiles

    tiles.TILE_ELEMENTS = 1 << 18  # of this process only

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            tensors = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
            self.size = max([self.size, *(x.untyped_storage().nbytes() // 4 for x in tensors)])
            return result

    n = 4096
    q, k, v = (x[:, :1].detach().requires_grad_() for x in random_parts(n, at.zigzag, width=4))
    with Largest() as largest:
        out, stats = at.ring_attend(q, k, v, layout=at.zigzag, mask=at.causal, method="ring")
        (out.sum() + stats.entropy.sum()).backward()
    assert largest.size <= 2 * tiles.TILE_ELEMENTS < (n // 2) ** 2


def check_meshes(rank):
    from torch.distributed.device_mesh import init_device_mesh

    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (1, ranks), mesh_dim_names=("data", "context"))
    q, k, v = random_parts(40, at.contiguous)
    one, _ = at.ring_attend(q, k, v, group=mesh["context"])
    two, _ = at.ring_attend(q, k, v)
    torch.testing.assert_close(one, two)
    with pytest.raises(
        ValueError, match=r"group must be a mesh of one dimension, .*, got one of 2"
    ):
        at.ring_attend(q, k, v, group=mesh)
    with pytest.raises(TypeError, match="group must be a ProcessGroup, a DeviceMesh or None, got"):
        at.ring_attend(q, k, v, group="world")
    alone = dist.new_group([0])
    if rank == 0:
        at.ring_attend(q, k, v, group=alone)
    else:
        with pytest.raises(ValueError, match="group must be a group that this process belongs to"):
            at.ring_attend(q, k, v, group=alone)


def refused(rank, kind, match, on, **options):
    q, k, v = random_parts(40, at.contiguous)
    change = options.pop("change", None)
    if change is not None and rank == 1:
        q, k, v = change(q, k, v)
    if options and on == 1 and rank == 0:
        options = {}
    with pytest.raises(kind, match=match):
        at.ring_attend(q, k, v, **options)


def check_bad_input(rank):
    error, everyone = at.DistributedError, None
    refused(rank, error, "the batch size is 2 on rank 1 and 1 on rank 0", 1,
            change=lambda *x: [y.repeat(2, 1, 1, 1) for y in x])  # fmt: skip
    refused(rank, error, "the heads of q is 4 on rank 1 and 2 on rank 0", 1,
            change=lambda q, k, v: (q.repeat(1, 2, 1, 1), k, v))  # fmt: skip
    refused(rank, error, "the width of v is 16 on rank 1 and 8 on rank 0", 1,
            change=lambda q, k, v: (q, k, v.repeat(1, 1, 1, 2)))  # fmt: skip
    refused(rank, error, "dtype is torch.bfloat16 on rank 1, torch.float32 on rank 0", 1,
            change=lambda *x: [y.bfloat16() for y in x])  # fmt: skip
    refused(rank, error, "rank 1 asks for other gradients of q, k and v than rank 0", 1,
            change=lambda q, k, v: (q, k.detach(), v))  # fmt: skip
    refused(rank, ValueError, "the length of keys on rank 0 must be 21, its share of 43 in the "
            "contiguous layout, got 20", 1,
            change=lambda q, *kv: (q, *(torch.cat([x, x[:, :, :3]], 2) for x in kv)))  # fmt: skip
    refused(rank, error, "rank 1 was called with another mask than rank 0", 1, mask=at.causal)
    refused(rank, error, "rank 1 was called with another scale than rank 0", 1, scale=0.5)
    other = ValueError if rank == 1 else error
    text = "method must be one of" if rank == 1 else "rank 1 of the group refused its arguments"
    refused(rank, other, text, 1, method="star")
    text = "k must be of shape" if rank == 1 else "rank 1 of the group refused its arguments"
    refused(rank, other, text, 1, change=lambda q, k, v: (q, k[0], v))
    refused(rank, ValueError, "kernel must be 'auto' or one of", everyone, kernel="abacus")
    refused(rank, at.UnsupportedError, "kernel='linear' does not support", everyone,
            kernel="linear")  # fmt: skip
    refused(rank, at.UnsupportedError, "ring_attend does not support Hard weights", everyone,
            weights=at.Hard())  # fmt: skip
    refused(
        rank,
        at.UnsupportedError,
        "not support Gumbel weights",
        everyone,
        weights=at.Gumbel(hard=True),
    )
    refused(rank, TypeError, "layout must be contiguous or zigzag, got 'zigzag'", everyone,
            layout="zigzag")  # fmt: skip
    refused(rank, ValueError, "padding: lengths must be between 0 and the number of keys 40",
            everyone, mask=at.padding(torch.tensor([41])))  # fmt: skip


def check_layouts(rank):
    for layout in (at.contiguous, at.zigzag):
        for n in (0, 1, 7, 16, 33):
            x = torch.arange(2 * n * 3).view(2, n, 3)
            mine = layout.shard(x)
            assert torch.equal(layout.unshard(mine), x)
            assert torch.equal(x[:, layout.positions(n)], mine)
    with pytest.raises(ValueError, match=r"the length of x on rank . must be .*, its share of"):
        at.zigzag.unshard(torch.zeros(1, 3 + 5 * rank))


def check_scale_of_rows(rank):
    """A scale [1,1,Q] has this rank's rows; lengths differ between ranks."""
    whole = torch.linspace(0.1, 2.0, 33).view(1, 1, -1)
    q, k, v = torch.randn(3, 1, 2, 33, 8, generator=torch.Generator().manual_seed(0))
    want = at.attend(q, k, v, scale=whole, mask=at.causal)
    parts = [of_rank(at.zigzag, x) for x in (q, k, v)]
    scale = of_rank(at.zigzag, whole).requires_grad_()
    got = at.ring_attend(*parts, scale=scale, mask=at.causal, layout=at.zigzag)
    torch.testing.assert_close(got.out, of_rank(at.zigzag, want.out))
    got.stats.entropy.sum().backward()
    assert scale.grad.shape == scale.shape


def check_double_backward(rank):
    q, k, v = random_parts(16, at.contiguous)
    out, _ = at.ring_attend(q, k, v)
    (g,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(at.UnsupportedError, match="double backward is not supported by the ring"):
        g.sum().backward()


CHECKS = {
    name: f for name, f in globals().items() if name.startswith("check_") and f is not check_case
}


def all_checks(rank):
    failed = {}
    for name, check in CHECKS.items():
        try:
            check(rank)
        except BaseException as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return failed


def test_checks():
    for failed in spawn(all_checks, 2):
        assert failed == {}


def interrupted(rank, end):
    """Rank 1 stops after its first part; how long the others take to say so, and what they say."""
    from attentropy.attention import attend as attention

    q, k, v = random_parts(64, at.contiguous)
    at.ring_attend(q, k, v)
    run = attention.run
    if rank == 1:
        attention.run = lambda call, kernel: end() or run(call, kernel)
    start = time.monotonic()
    try:
        out, _ = at.ring_attend(q, k, v, method="ring")
        out.sum().backward()
    except at.DistributedError as error:
        return time.monotonic() - start, str(error)
    return "no error"


def leave():
    os._exit(1)


def stall():
    time.sleep(60)


@pytest.mark.parametrize(("end", "limit"), [(leave, 5.0), (stall, 15.0)])
def test_a_rank_that_stops(end, limit):
    took, message = spawn(interrupted, 2, end, timeout=5.0, of=[0])[0]
    assert took < limit
    assert "ring_attend: another rank of the group failed, left or did not answer" in message


def test_one_process_is_a_ring_of_one():
    for options in every_case(RAGGED).values():
        tensors, rows = RAGGED.tensors(), torch.arange(RAGGED.queries)
        want = compute(at.attend, tensors, options, rows, RAGGED.queries)
        got = compute(at.ring_attend, tensors, {**options, "method": "ring"}, rows, RAGGED.queries)
        torch.testing.assert_close(got[0].out, want[0].out)
        torch.testing.assert_close(got[1], want[1])


def test_an_option_that_attend_has_not_is_refused():
    q = torch.ones(1, 1, 4, 8)
    with pytest.raises(
        ValueError, match=r"option must be one of \['bias', 'dropout', .*, got 'msak'"
    ):
        at.ring_attend(q, q, q, msak=at.causal)
