"""python -m benchmarks.small [--threads N]: what a small call costs, and where its microseconds go.

CPU time of this process, contenders in turn; the least of many rounds, which other processes
disturb least. Ratios are to torch's scaled_dot_product_attention on the same tensors.
"""

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from attentropy.attention import plans
from attentropy.attention.attend import attend
from attentropy.core.resolve import Options, resolve
from attentropy.kernels.attended import attended
from attentropy.kernels.fused import kernel as fused
from attentropy.kernels.fused.plan import CallPlan

SHAPES = {"(1,4,32,32)": (4, 4, 32, 32, 32), "one query, (1,9|3,1x2048,64)": (9, 3, 1, 2048, 64)}


def microseconds(contenders: dict[str, Callable[[], object]], rounds: int = 40) -> dict[str, float]:
    best = dict.fromkeys(contenders, float("inf"))
    for name, run in contenders.items():
        run()
        start = time.perf_counter()
        run()
        once = time.perf_counter() - start
        contenders[name] = _repeated(run, max(5, min(300, int(4e-3 / once))))
    for _ in range(rounds):
        for name, run in contenders.items():
            best[name] = min(best[name], run())
    return best


def _repeated(run: Callable[[], object], count: int) -> Callable[[], float]:
    def timed() -> float:
        start = time.process_time()
        for _ in range(count):
            run()
        return (time.process_time() - start) / count * 1e6

    return timed


def contenders(q: Tensor, k: Tensor, v: Tensor, *, backward: bool) -> dict[str, Callable]:
    shared = q.shape[1] != k.shape[1]

    def differentiated(f: Callable[..., Tensor]) -> Callable[[], object]:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        grad = torch.ones(q.shape)
        return lambda: torch.autograd.grad(f(*leaves), leaves, grad)

    def torchs(*tensors: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*tensors, enable_gqa=shared)

    def ours(*tensors: Tensor) -> Tensor:
        return attend(*tensors).out

    if backward:
        return {"sdpa": differentiated(torchs), "attend": differentiated(ours)}
    return {
        "sdpa": lambda: torchs(q, k, v),
        "attend": lambda: ours(q, k, v),
        "attend, entropy read": lambda: attend(q, k, v).stats.entropy,
    }


def stages(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Callable[[], object]]:
    """Parts of a call: of one that is described anew, and of one that has a plan."""
    options, call = Options(), resolve(q, k, v, Options())
    plan, kind = CallPlan.of(call), plans.kind_of(q, k, v, options, "auto")
    saved = (q, k, v, *plan.forward(q, k, v))
    grad = torch.ones_like(saved[3])
    return {
        "anew: resolve": lambda: resolve(q, k, v, options),
        "anew: kernel with its arguments": lambda: fused.attend(call),
        "anew: result": lambda: attended(call, fused.attend(call)),
        "plan: kind of the call": lambda: plans.kind_of(q, k, v, options, "auto"),
        "plan: look it up": lambda: plans.find(kind),
        "plan: allocate and run forward": lambda: plan.forward(q, k, v),
        "plan: the same with its result": lambda: plan.attend(q, k, v),
        "plan: allocate and run backward": lambda: plan.backward(saved, grad),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    for name, (heads, key_heads, queries, keys, width) in SHAPES.items():
        q = torch.randn(1, heads, queries, width)
        k, v = (torch.randn(1, key_heads, keys, width) for _ in range(2))
        for backward in (False, True):
            found = microseconds(contenders(q, k, v, backward=backward))
            print(f"{name}, {'with backward' if backward else 'forward'}")
            for contender, least in found.items():
                print(f"  {contender:34}{least:9.1f} us  {least / found['sdpa']:.2f}")
        print(f"{name}, parts")
        for part, least in microseconds(stages(q, k, v)).items():
            print(f"  {part:34}{least:9.1f} us")


if __name__ == "__main__":
    main()
