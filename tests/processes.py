"""Runs a function in several processes of one gloo group, and gives back what each returns."""

import datetime
import os
import queue
import tempfile
import traceback

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# Imported once, by the process that all others are copies of: it runs nothing and has one thread.
PRELOADED = [
    "torch.distributed.tensor",
    "transformers.models.llama.modeling_llama",
    "attentropy.attention.ring",
    "attentropy.models.watch",
    "attentropy.nn",
    "attentropy.training.monitor",
]


def spawn(work, ranks, *args, timeout=120.0, patience=400.0, of=None):
    """[work(rank, *args) of each rank]; an exception is given back as its text, a death as None.

    With `of`, only these ranks are waited for.
    """
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        place = os.path.join(folder, "rendezvous")
        processes = [
            context.Process(target=_run, args=(work, r, ranks, place, timeout, results, args))
            for r in range(ranks)
        ]
        for process in processes:
            process.start()
        try:
            return _collect(processes, results, patience, of)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _collect(processes, results, patience, of):
    found = dict.fromkeys(range(len(processes)))
    waiting = set(found if of is None else of)
    end = datetime.datetime.now() + datetime.timedelta(seconds=patience)
    while waiting and datetime.datetime.now() < end:
        try:
            rank, value = results.get(timeout=0.5)
            found[rank] = value
            waiting.discard(rank)
        except queue.Empty:
            waiting -= {r for r in waiting if processes[r].exitcode not in (None, 0)}
    assert not waiting, f"ranks {sorted(waiting)} hang"
    return list(found.values())


def _run(work, rank, ranks, place, timeout, results, args):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{place}",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=timeout),
    )
    try:
        value = work(rank, *args)
    except Exception:
        value = traceback.format_exc()
    results.put((rank, value))
    results.close()
    results.join_thread()
    if not isinstance(value, str):
        dist.destroy_process_group()
