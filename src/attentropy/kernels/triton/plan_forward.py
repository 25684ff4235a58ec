"""What to launch for a call: the kernels in order, with what they read and write."""

import math
from typing import Any

import torch
import triton

from attentropy.kernels.softmax_results import SoftmaxResults, empty
from attentropy.kernels.triton.configs import ROWWISE
from attentropy.kernels.triton.device.decode import join
from attentropy.kernels.triton.device.forward import forward
from attentropy.kernels.triton.device.spread import spread
from attentropy.kernels.triton.device.views import Partial
from attentropy.kernels.triton.launch import Launch
from attentropy.kernels.triton.problem import Problem, padded

FEW_QUERIES = 16
LEAST_SHARE = 128
GRAIN = 64
INTERPRETED_PROCESSORS = 8
STATE_NUMBERS = 6
"""Numbers of the state of a share beside its output: m, l, t, u, c and the argmax."""


BITS = {"entropy": 1, "varentropy": 2, "collision": 4, "argmax": 8}
"""Statistics that a kernel may leave out, as the bits of its WANTED."""


def plan_forward(problem: Problem) -> tuple[list[Launch], SoftmaxResults]:
    """One sweep; for few queries one per share of the keys, and the merge of their states.

    Then the sweep once more, over rows that are not finite, and varentropy once more, of rows in
    which it lost digits: most often over none.
    """
    B, H, Q = problem.rows
    decoding = Q <= FEW_QUERIES
    group = H // problem.call.k.shape[1] if decoding else 1
    wanted = wanted_of(problem.call.computed)
    tiles = problem.tiles("decode" if decoding else "forward" if wanted else "bare forward")

    def blocks(block: int) -> int:
        return B * (H // group) * triton.cdiv(Q * group, block)

    splits, share = shares(problem, blocks(tiles.block), grain=max(GRAIN, tiles.tile))
    written = empty(problem.call)
    unsure = torch.empty(problem.rows, dtype=torch.int8, device=problem.call.q.device)
    partial = empty_states(problem, splits) if splits > 1 else None
    args = {
        **problem.shared(),
        **problem.columns(None if decoding else tiles),
        "written": written,
        "unsure": unsure,
        "partial": partial,
        "share": share,
        "splits": splits,
        "PACK": decoding,
        "WANTED": wanted,
    }
    launches = [
        Launch(kernel=forward, args=args, tiles=tiles, programs=lambda n: splits * blocks(n))
    ]
    if partial is not None:
        launches.append(plan_join(problem, args))
    whole = {"partial": None, "splits": 1, "share": splits * share}
    again = {**args, **whole, **problem.again()}
    safe = problem.tiles("safe")
    launches.append(Launch(kernel=forward, args=again, tiles=safe, programs=blocks))
    if wanted & BITS["varentropy"]:
        launches.append(plan_spread(problem, args))
    return launches, written


def wanted_of(asked: frozenset[str]) -> int:
    """The statistics that are asked for, as bits; varentropy and its gradient take entropy."""
    asked = asked | {"entropy"} if "varentropy" in asked else asked
    return sum(bit for name, bit in BITS.items() if name in asked)


def plan_spread(problem: Problem, args: dict[str, Any]) -> Launch:
    """Sum varentropy about the mean, where that is marked."""
    B, H, Q = problem.rows
    args = {**args, **problem.columns()}
    names = [name for name in spread.arg_names if name in args]
    return Launch(
        kernel=spread,
        args={name: args[name] for name in names},
        tiles=problem.tiles("spread"),
        programs=lambda n: B * H * triton.cdiv(Q, n),
    )


def plan_join(problem: Problem, args: dict[str, Any]) -> Launch:
    """Merge the states of the shares."""
    total, width = math.prod(problem.rows), problem.call.v.shape[-1]
    shared = {name: args[name] for name in ("written", "unsure", "partial", "splits", "WANTED")}
    args = {**shared, "total": total, "DV": width, "BLOCK_V": padded(width)}
    return Launch(kernel=join, args=args, tiles=ROWWISE, programs=lambda n: triton.cdiv(total, n))


def shares(problem: Problem, programs: int, *, grain: int = GRAIN) -> tuple[int, int]:
    """Number of shares, and of keys in a share, such that every processor has work."""
    q, k, v = problem.call[:3]
    lean = lean_share(q.shape[1] // k.shape[1], v.shape[-1], bytes_of_key=_row(k) + _row(v))
    among = processors(problem.call.q.device)
    return cut(problem.keys, programs=programs, among=among, lean=lean, grain=grain)


def _row(x: torch.Tensor) -> int:
    return x.shape[-1] * x.element_size()


def lean_share(group: int, width: int, *, bytes_of_key: int) -> int:
    """Keys of a share at least, if its states are to be a tenth of the bytes of its keys at most.

    Args:
        group: query heads that share a key head.
        width: of the values.
        bytes_of_key: of one key and its value.

    >>> lean_share(4, 128, bytes_of_key=512), lean_share(32, 128, bytes_of_key=512)
    (84, 670)
    """
    written_and_read = 2 * 4 * (width + STATE_NUMBERS)
    return -(-10 * group * written_and_read // bytes_of_key)


def cut(
    keys: int, *, programs: int, among: int, lean: int = LEAST_SHARE, grain: int = GRAIN
) -> tuple[int, int]:
    """Number of shares of the keys, and of keys in a share, for so many programs and processors.

    Two programs for each processor, as far as shares have `lean` keys; one in any case that leaves
    LEAST_SHARE keys to a share.

    Args:
        keys: of a row.
        programs: that there are with one share.
        among: processors.
        lean: keys of a share below which its states cost much beside them.
        grain: of which the keys of a share are a multiple, no tile being in two shares.

    >>> cut(4096, programs=8, among=108)
    (22, 192)
    """
    wanted, full = 2 * among // max(programs, 1), triton.cdiv(among, max(programs, 1))
    count = max(1, min(wanted, keys // LEAST_SHARE, max(full, keys // lean)))
    share = triton.cdiv(triton.cdiv(keys, count), grain) * grain
    return max(1, triton.cdiv(keys, max(share, 1))), max(share, 1)


def processors(device: torch.device) -> int:
    """Number of multiprocessors of the device."""
    if device.type != "cuda":
        return INTERPRETED_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def empty_states(problem: Problem, splits: int) -> Partial:
    """Room for the states of the shares."""
    shape, device = (*problem.rows, splits), problem.call.q.device
    m, l, t, u, c = (torch.empty(shape, dtype=torch.float32, device=device) for _ in range(5))
    top = torch.empty(shape, dtype=torch.int32, device=device)
    acc = torch.empty(*shape, problem.call.v.shape[-1], dtype=torch.float32, device=device)
    return Partial(m, l, t, u, c, top, acc)
