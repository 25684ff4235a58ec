"""python -m benchmarks.watching: what watching a model costs, against the same model unwatched.

Contenders run interleaved, in alternating order; ratios are of medians of CPU time (all threads),
which a busy machine disturbs less than the clock. Memory is the highest resident set of a forward
pass above the level before it, in a process of its own that gives freed memory back at once; what
the watch and the maps take more than the plain forward is extra. The bars:

    transformers, 6 layers, 12 heads of 64, n = 1024, causal, against sdpa unwatched:
        forward <= 1.0, training step <= 1.0, statistics every step
    against eager with output_attentions and the entropy of them: >= 2x faster, >= 10x less memory
    recording without the kernel (watched against the same attention unrecorded): <= 1.02
    a plain torch model through scaled_dot_product_attention: <= 1.03
    small models (--small): at most 150 microseconds per layer and call
"""

import argparse
import gc
import json
import os
import re
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import attentropy as at
from attentropy.models.record.recorder import Recorder


def llama(implementation):
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=768, intermediate_size=2048, num_hidden_layers=6,
        num_attention_heads=12, num_key_value_heads=12, max_position_embeddings=2048,
    )  # fmt: skip
    config._attn_implementation = implementation
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config)


class Block(nn.Module):
    def __init__(self, width=768, heads=12):
        super().__init__()
        self.heads = heads
        self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.after(x))))


def interleaved(calls, repeat):
    """Median CPU seconds of each call."""
    for call in calls.values():
        call()
    taken = {name: [] for name in calls}
    for i in range(repeat):
        names = list(calls)
        for name in names if i % 2 == 0 else reversed(names):
            start = time.process_time()
            calls[name]()
            taken[name].append(time.process_time() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def entropy_of_maps(model, ids):
    maps = model(ids, output_attentions=True, use_cache=False).attentions
    return [torch.special.entr(p).sum(-1).mean((0, 2)) for p in maps]


def watched(model, run):
    def call():
        with at.watch(model) as w:
            run()
        return w

    return call


class Silent(Recorder):
    """Takes attention over, and records nothing."""

    def prepare(self, owner, asked, out, stats):
        return lambda: None


def unrecorded(model, run):
    def call():
        watch = at.watch(model)
        silent = Silent(every=1, keep="mean", sample=8)
        watch.recorder = silent
        watch.start()
        try:
            run()
        finally:
            watch.stop()

    return call


def forward_calls(length):
    model, eager = llama("sdpa").eval(), llama("eager").eval()
    ids = torch.randint(0, 512, (1, length))

    def run():
        with torch.no_grad():
            model(ids, use_cache=False)

    def maps():
        with torch.no_grad():
            entropy_of_maps(eager, ids)

    return {
        "sdpa": run, "watched": watched(model, run), "unrecorded": unrecorded(model, run),
        "eager maps": maps,
    }  # fmt: skip


def peak(name, length):
    """MiB at the peak of a forward pass above the level before, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.watching", "--peak", name]
    command += ["--length", str(length), "--threads", str(torch.get_num_threads())]
    freed = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run(
        command, env=os.environ | freed, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def own_peak(name, length):
    forward_calls(32)[name]()  # everything is loaded
    call = forward_calls(length)[name]
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = status("VmRSS")
    call()
    return (status("VmHWM") - before) / 1024


def status(field):
    return int(re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1])


def steps(repeat, length):
    model = llama("sdpa").train()
    ids = torch.randint(0, 512, (1, length))

    def run():
        model(ids, labels=ids, use_cache=False).loss.backward()
        model.zero_grad()

    return interleaved(
        {"sdpa": run, "watched": watched(model, run), "unrecorded": unrecorded(model, run)}, repeat
    )


def plain(repeat, length):
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(6))).eval()
    x = torch.randn(1, length, 768)

    def run():
        with torch.no_grad():
            model(x)

    return interleaved({"sdpa": run, "watched": watched(model, run)}, repeat)


SMALL = {  # name: layers, width, heads, length, bar of the ratio
    "Llama, 2 layers of 64, n = 16": (2, 64, 4, 16, 1.4),
    "Llama, 4 layers of 128, n = 64": (4, 128, 4, 64, 1.2),
    "encoder, 6 layers of 384, n = 64": (6, 384, 12, 64, 1.05),
    "encoder, 6 layers of 384, n = 512": (6, 384, 12, 512, 0.92),
}


def small_model(name):
    """A small model, and what runs it."""
    import transformers

    layers, width, heads, length, _ = SMALL[name]
    sizes = {
        "vocab_size": 512, "hidden_size": width, "intermediate_size": 4 * width,
        "num_hidden_layers": layers, "num_attention_heads": heads, "max_position_embeddings": 1024,
    }  # fmt: skip
    llama = name.startswith("Llama")
    kind, config = ("LlamaModel", "LlamaConfig") if llama else ("BertModel", "BertConfig")
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**sizes)).eval()
    ids = torch.randint(512, (1, length))

    @torch.no_grad()
    def run():
        model(input_ids=ids)

    return model, run


PASSES = 4  # of a round, after one that is not timed


def small(name, repeat):
    """CPU time of one pass in a watch that goes on, and where the microseconds of a layer go.

    A watch that records one pass in a million tells what it costs to follow the modules and to
    look at each call; the rest is the kernel, which also sums, in the place of torch's own. Rounds
    are short, and what is told is the median of their ratios and differences: a machine whose speed
    changes has one speed within a round.
    """
    model, run = small_model(name)
    layers, bar = SMALL[name][0], SMALL[name][4]
    watches = {"watched": at.watch(model), "followed": at.watch(model, every=10**6)}

    def entered():
        with at.watch(model):
            run()

    def timed(call):
        call()
        start = time.process_time()
        for _ in range(PASSES):
            call()
        return (time.process_time() - start) / PASSES

    def inside(watch):
        watch.start()
        try:
            return timed(run)
        finally:
            watch.stop()

    contenders = {
        "sdpa": partial(timed, run),
        **{kind: partial(inside, watch) for kind, watch in watches.items()},
        "entered": partial(timed, entered),
    }
    for call in contenders.values():
        call()
    rounds = []
    for i in range(10 * repeat):
        names = list(contenders) if i % 2 == 0 else list(reversed(contenders))
        rounds.append({kind: contenders[kind]() for kind in names})

    def ratio(kind):
        return statistics.median(took[kind] / took["sdpa"] for took in rounds)

    def more(kind, base):
        return statistics.median(1e6 * (took[kind] - took[base]) / layers for took in rounds)

    return {
        f"{name}, watched / sdpa (bar {bar})": ratio("watched"),
        f"{name}, us per layer": more("watched", "sdpa"),
        f"{name}, of these following modules": more("followed", "sdpa"),
        f"{name}, of these kernel and sums": more("watched", "followed"),
        f"{name}, watch entered per pass / sdpa": ratio("entered"),
    }


def ratio(took, name, base):
    return took[name] / took[base]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument("--small", dest="only", action="store_const", const="small")
    parser.add_argument("--peak", help="print the peak memory of this contender alone")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.peak:
        print(own_peak(given.peak, given.length))
        return
    rows = {"torch": torch.__version__, "threads": given.threads, "repeat": given.repeat}
    show = partial(_show, rows)
    for part in [given.only] if given.only else PARTS:
        PARTS[part](given, show)
    print(json.dumps(rows))


def small_models(given, show):
    for case in SMALL:
        for name, value in small(case, given.repeat).items():
            show(name, value)


def memory(given, show):
    memory = {name: peak(name, given.length) for name in ("sdpa", "watched", "eager maps")}
    for name, mib in memory.items():
        show(f"peak MiB of the forward, {name}", mib)
    more = [max(memory[n] - memory["sdpa"], 0.1) for n in ("eager maps", "watched")]
    show("extra memory, eager maps / watched (bar 10)", more[0] / more[1])


def forward(given, show):
    took = interleaved(forward_calls(given.length), given.repeat)
    show("forward, watched / sdpa (bar 1.0)", ratio(took, "watched", "sdpa"))
    show("recording in the forward (bar 1.02)", ratio(took, "watched", "unrecorded"))
    show("forward, eager maps / watched (bar 2)", ratio(took, "eager maps", "watched"))
    show("seconds of the sdpa forward", took["sdpa"])


def plain_model(given, show):
    took = plain(given.repeat, given.length)
    show("plain torch forward, watched / sdpa (bar 1.03)", ratio(took, "watched", "sdpa"))


def training(given, show):
    took = steps(given.repeat, given.length)
    show("training step, watched / sdpa (bar 1.0)", ratio(took, "watched", "sdpa"))
    show("recording in the step (bar 1.02)", ratio(took, "watched", "unrecorded"))
    show("seconds of the sdpa step", took["sdpa"])


PARTS = {
    "small": small_models, "memory": memory, "forward": forward, "plain": plain_model,
    "training": training,
}  # fmt: skip


def _show(rows, name, value):
    rows[name] = round(value, 4)
    print(f"{name:50} {value:8.3f}", flush=True)


if __name__ == "__main__":
    main()
