"""Every architecture of the installed transformers: listed, built small, and tried.

Each trial runs in a process of its own with a time limit, and leaves one JSON line in the cache, so
that a census goes on where it ended.
"""

import json
import multiprocessing
import os
import resource
import time
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from tests.models.zoo.feeds import fitted
from tests.models.zoo.shrink import LEVELS, small
from tests.models.zoo.trial import verdict

LARGEST, MEMORY = 70_000_000, 8 << 30  # parameters of a model, bytes of a process
PATIENCE = 20  # seconds of waiting for each second of CPU time, on a busy machine
GENERATORS = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
)


@dataclass(frozen=True)
class Entry:
    """An architecture, and the classes that can stand for it: the first that builds is tried."""

    architecture: str
    models: tuple[str, ...]


@dataclass
class Record:
    """One line of the cache."""

    architecture: str
    model: str = ""
    verdict: str = "not built"
    why: str = ""
    kinds: list = field(default_factory=list)
    operators: int = 0
    changed: dict = field(default_factory=dict)
    error: float | None = None
    told: list = field(default_factory=list)
    steered: str = ""
    fed: list = field(default_factory=list)
    dtype: str = ""
    seconds: float = 0.0


def entries():
    """Architectures that have a model of their own, in the order of their names."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    tables = [
        n for n in dir(modeling_auto) if n.startswith("MODEL_") and n.endswith("_MAPPING_NAMES")
    ]
    tables = [
        "MODEL_MAPPING_NAMES",
        *GENERATORS,
        *sorted(set(tables) - set(GENERATORS) - {"MODEL_MAPPING_NAMES"}),
    ]
    found = {}
    for architecture, config in sorted(CONFIG_MAPPING_NAMES.items(), key=lambda pair: len(pair[0])):
        models = [m for t in tables for m in _names(getattr(modeling_auto, t).get(architecture))]
        models = tuple(dict.fromkeys(models))
        if models:
            found.setdefault((config, models[0]), Entry(architecture, models))
    return sorted(found.values(), key=lambda entry: entry.architecture)


def _names(value):
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def built(entry):
    """A small model of an entry with inputs that it takes; raises the first error otherwise."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    first = None
    for dtype in (torch.float64, torch.float32):
        for name in entry.models[:2]:
            for level in LEVELS:
                try:
                    return _built(CONFIG_MAPPING[entry.architecture], name, level, dtype)
                except Exception as error:
                    first = first or error
    raise first


def _built(config_class, name, level, dtype):
    import transformers

    torch.manual_seed(7)
    torch.set_default_dtype(dtype)
    kind = getattr(transformers, name)
    config = small(config_class, level)
    config._experts_implementation = "eager"  # grouped products have no double
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count = _parameters(kind, config)
    if count > LARGEST:
        raise MemoryError(f"{count} parameters at level {level}")
    model = kind(config).to(dtype).eval()
    sharpen(model)
    with torch.no_grad():
        inputs = fitted(model, lambda batch: _forward(model, batch))
    return model, inputs, dtype


def _parameters(kind, config):
    try:
        return sum(p.numel() for p in kind(config).parameters())
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return 0


def sharpen(model):
    """Weights that make attention sharp enough to tell errors."""
    torch.manual_seed(8)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2 and parameter.is_floating_point():
                parameter.normal_(std=1.5 * max(1, parameter[0].numel()) ** -0.5)
            elif "sink" in name:
                parameter.normal_()


def _forward(model, batch):
    torch.manual_seed(5)
    return model(**batch)


def trial(entry):
    """The record of one entry."""
    began = time.process_time()
    record = Record(entry.architecture, entry.models[0])
    try:
        model, inputs, dtype = built(entry)
    except Exception as error:
        record.why = f"{type(error).__name__}: {error}"[:300]
    else:
        record.model, record.fed, record.dtype = type(model).__name__, list(inputs), str(dtype)[6:]
        for key, value in asdict(
            verdict(model, lambda: _forward(model, inputs), dtype=dtype)
        ).items():
            setattr(record, key, value)
    record.seconds = round(time.process_time() - began, 2)
    return record


def _child(entry, pipe, seconds):
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
    torch.set_num_threads(1)
    try:
        record = trial(entry)
    except Exception as error:
        record = Record(
            entry.architecture, entry.models[0], "harness", f"{type(error).__name__}: {error}"[:300]
        )
    pipe.send(asdict(record))


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
        slow = f"took more than {seconds:g} s, or ended with code {child.exitcode}"
        return asdict(Record(entry.architecture, entry.models[0], "not built", slow))
    finally:
        child.kill()
        child.join()


def run(chosen, cache, *, seconds=120, jobs=1, again=False):
    """Try the chosen entries that the cache lacks, and yield all their records.

    Args:
        chosen: entries to try.
        cache: a file of JSON lines, made where it is missing.
        seconds: time limit of each.
        jobs: processes at a time.
        again: try those in the cache too.
    """
    from concurrent.futures import ThreadPoolExecutor, as_completed

    done = {} if again else cached(cache)
    cache.parent.mkdir(parents=True, exist_ok=True)
    todo = [e for e in chosen if e.architecture not in done]
    yield from (done[e.architecture] for e in chosen if e.architecture in done)
    if todo:
        _warm()
    with ThreadPoolExecutor(jobs) as pool:
        for ended in as_completed([pool.submit(alone, entry, seconds) for entry in todo]):
            record = ended.result()
            with cache.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            yield record


def _warm():
    """Import in this process what every trial needs, so that the processes of trials start with it."""
    trial(next(e for e in entries() if e.architecture == "bert"))
    torch.set_default_dtype(torch.float32)


def cached(cache):
    """Records of a cache by architecture; the last of each counts."""
    if not Path(cache).exists():
        return {}
    lines = Path(cache).read_text(encoding="utf-8").splitlines()
    return {r["architecture"]: r for r in map(json.loads, lines)}


os.environ.setdefault("HF_HUB_OFFLINE", "1")
