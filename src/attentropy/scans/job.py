"""A whole scan from its request: load, read, measure each length, diagnose, advise.

What is measured is handed to `keep` after every length, so that a stopped scan can go on.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from attentropy.scans.listener import Listener
from attentropy.scans.loading import inputs, sources
from attentropy.scans.measuring import lengths
from attentropy.scans.scan import Origin, scan
from attentropy.scans.schema import Scan, ScanError


@dataclass(frozen=True, kw_only=True)
class Job:
    """What was asked for, as the command line says it."""

    model: str | None = None
    texts: Sequence[Path] = ()
    tokens: Path | None = None
    lengths: str | None = None
    batch: int = 4
    dtype: str = "float32"
    device: str = "cpu"
    threads: int | None = None
    calibrate: bool = False
    resume: Scan | None = None
    permissions: sources.Permissions = field(default_factory=sources.Permissions)
    command: str = "attentropy scan"


Keep = Callable[[Scan], object]


def run(job: Job, listener: Listener, *, keep: Keep) -> Scan:
    """Do the job; `keep` receives the scan after every length."""
    asked = None if job.lengths is None else lengths.parse(job.lengths)
    if job.texts and job.tokens:
        raise ScanError("--text and --tokens exclude each other")
    # the embedded model is too small to be shared between threads
    with threads(1 if job.model is None and job.threads is None else job.threads):
        return _run(job, asked, listener, keep)


def _run(job: Job, asked: list[int] | None, listener: Listener, keep: Keep) -> Scan:
    began = time.perf_counter()
    source = sources.load(job.model, sources.Placement(job.dtype, job.device), job.permissions)
    tokens = read_tokens(job, source)
    done = None if job.resume is None else same_work(job.resume, source, tokens)
    origin = Origin(
        model=source.about,
        text=tokens.about,
        command=job.command,
        load=source.call,
        label=source.decode,
        began=began,
    )
    return scan(
        source.model,
        tokens.ids,
        lengths=asked,
        batch=job.batch,
        calibrate=job.calibrate,
        origin=origin,
        done=done,
        listener=listener,
        keep=keep,
    )


def read_tokens(job: Job, source: sources.Source) -> inputs.Tokens:
    """The token ids that the job names."""
    reads = getattr(source.model, "main_input_name", "input_ids")
    if reads != "input_ids":
        name = type(source.model).__name__
        raise ScanError(f"a scan reads text, and {name} takes {reads}: use at.watch(model)")
    if job.tokens is not None:
        return inputs.from_file(job.tokens, source)
    return inputs.from_texts(job.texts, source) if job.texts else inputs.from_sample(source)


def same_work(old: Scan, source: sources.Source, tokens: inputs.Tokens) -> Scan:
    """The stopped scan itself, if it is of the same model and text."""
    pairs = (
        ("model", old.model.source, source.about.source),
        ("number of parameters", old.model.parameters, source.about.parameters),
        ("dtype", old.model.dtype, source.about.dtype),
        ("text", old.input.sha256, tokens.about.sha256),
    )
    for name, before, now in pairs:
        if before != now:
            raise ScanError(f"--resume: the stopped scan has another {name}: {before}, not {now}")
    return old


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """So many CPU threads inside the block; None leaves them as they are."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
