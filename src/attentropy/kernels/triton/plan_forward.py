"""What to launch for a call: the kernels in order, with what they read and write."""

import torch
import triton

from attentropy.kernels.softmax_results import SoftmaxResults, empty
from attentropy.kernels.triton.configs import ROWWISE
from attentropy.kernels.triton.device.decode import join
from attentropy.kernels.triton.device.forward import forward
from attentropy.kernels.triton.device.views import Partial
from attentropy.kernels.triton.launch import Launch
from attentropy.kernels.triton.problem import Problem, padded

FEW_QUERIES = 16
LEAST_SHARE = 256
INTERPRETED_PROCESSORS = 8


def plan_forward(problem: Problem, *, stats: bool = True) -> tuple[list[Launch], SoftmaxResults]:
    """One sweep; for few queries one per share of the keys, and the merge of their states.

    Then the sweep once more, over rows that are not finite: most often over none.
    """
    B, H, Q = problem.rows
    decoding = Q <= FEW_QUERIES
    group = H // problem.call.k.shape[1] if decoding else 1
    choices = problem.configs("decode" if decoding else "forward")

    def blocks(block: int) -> int:
        return B * (H // group) * triton.cdiv(Q * group, block)

    splits, share = shares(problem, blocks(choices[0].block))
    written = empty(problem.call)
    partial = empty_states(problem, splits) if splits > 1 else None
    args = {
        **problem.shared(),
        "written": written,
        "partial": partial,
        "share": share,
        "splits": splits,
        "PACK": decoding,
        "STATS": stats,
    }
    launches = [
        Launch(kernel=forward, args=args, choices=choices, programs=lambda n: splits * blocks(n))
    ]
    if partial is not None:
        launches.append(plan_join(problem, written, partial, splits))
    whole = {"partial": None, "splits": 1, "share": splits * share}
    again = {**args, **whole, **problem.again()}
    choices = problem.configs("safe")
    launches.append(Launch(kernel=forward, args=again, choices=choices, programs=blocks))
    return launches, written


def plan_join(problem: Problem, written: SoftmaxResults, partial: Partial, splits: int) -> Launch:
    """Merge the states of the shares."""
    total = written.lse.numel()
    args = {
        "written": written,
        "partial": partial,
        "splits": splits,
        "total": total,
        "DV": problem.call.v.shape[-1],
        "BLOCK_V": padded(problem.call.v.shape[-1]),
    }
    return Launch(kernel=join, args=args, choices=ROWWISE, programs=lambda n: triton.cdiv(total, n))


def shares(problem: Problem, programs: int) -> tuple[int, int]:
    """Number of shares, and of keys in a share, such that every processor has work."""
    wanted = 2 * processors(problem.call.q.device) // max(programs, 1)
    count = max(1, min(wanted, problem.keys // LEAST_SHARE))
    share = triton.cdiv(triton.cdiv(problem.keys, count), 128) * 128
    return max(1, triton.cdiv(problem.keys, max(share, 1))), max(share, 1)


def processors(device: torch.device) -> int:
    """Number of multiprocessors of the device."""
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def empty_states(problem: Problem, splits: int) -> Partial:
    """Room for the states of the shares."""
    shape, device = (*problem.rows, splits), problem.call.q.device
    m, l, t, c = (torch.empty(shape, dtype=torch.float32, device=device) for _ in range(4))
    top = torch.empty(shape, dtype=torch.int32, device=device)
    acc = torch.empty(*shape, problem.call.v.shape[-1], dtype=torch.float32, device=device)
    return Partial(m, l, t, c, top, acc)
