"""Trials in processes of their own, with limits, and a cache of one JSON line for each, so that a
census goes on where it ended.
"""

import ast
import hashlib
import json
import multiprocessing
import resource
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

import torch

import attentropy
from tests.models.zoo.census import Entry, Record, trial

PARTS = (
    "kernels/**/*",
    "models/intercept/**/*",
    "models/record/*",
    "models/steer/*",
    "models/watch.py",
)
MEMORY = 8 << 30  # bytes of a process
PATIENCE = 20  # seconds of waiting for each second of CPU time, on a busy machine


def state():
    """Eight digits that name the code that watches, steers and measures, whatever its comments."""
    root, told = Path(attentropy.__file__).parent, hashlib.sha256()
    for file in sorted({file for part in PARTS for file in root.glob(part)}):
        if file.suffix in (".py", ".cpp", ".h"):
            told.update(f"{file.relative_to(root)}\0{_code(file)}\0".encode())
    return told.hexdigest()[:8]


def _code(file):
    """What a file says, without comments and docstrings if it is Python."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        return text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            node.body = body[1:]
    return ast.dump(tree)


def run(chosen, cache, *, seconds=60, jobs=1, again=False):
    """Try the chosen entries that the cache lacks, and yield the records of all; those tried now
    have the state of the code.

    Args:
        chosen: entries to try.
        cache: a file of JSON lines, made where it is missing.
        seconds: limit of CPU time of each.
        jobs: processes at a time.
        again: try those in the cache too.
    """
    done = {} if again else cached(cache)
    cache.parent.mkdir(parents=True, exist_ok=True)
    todo = [entry for entry in chosen if entry.architecture not in done]
    yield from (done[entry.architecture] for entry in chosen if entry.architecture in done)
    if todo:
        trial(Entry("bert", ("BertModel",)))  # imports what all trials need, before they start
    now = state()
    with ThreadPoolExecutor(jobs) as pool:
        for ended in as_completed([pool.submit(alone, entry, seconds) for entry in todo]):
            record = {**ended.result(), "state": now}
            with cache.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            yield record


def cached(cache):
    """Records of a cache by architecture; the last of each counts."""
    if not Path(cache).exists():
        return {}
    lines = Path(cache).read_text(encoding="utf-8").splitlines()
    return {record["architecture"]: record for record in map(json.loads, lines)}


def alone(entry, seconds):
    """trial() in a process of its own, ended after so many seconds of CPU time."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(entry, theirs, seconds))
    child.start()
    theirs.close()
    try:
        if ours.poll(PATIENCE * seconds):
            return ours.recv()
        raise EOFError
    except EOFError:
        child.join(5)
        why = f"took more than {seconds:g} s, or ended with code {child.exitcode}"
        return asdict(Record(entry.architecture, *entry.models[:1], why=why))
    finally:
        child.kill()
        child.join()


def _child(entry, pipe, seconds):
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
    torch.set_num_threads(1)
    try:
        record = trial(entry)
    except Exception as error:
        record = Record(entry.architecture, *entry.models[:1], verdict="harness")
        record.why = f"{type(error).__name__}: {error}"[:300]
    pipe.send(asdict(record))
