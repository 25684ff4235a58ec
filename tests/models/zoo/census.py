"""Every architecture of the installed transformers, and models of other libraries: listed, built
small, and tried.
"""

import importlib
import re
import time
import warnings
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial, partialmethod

import torch

from tests.models.zoo.exceptions import CLASSES
from tests.models.zoo.feeds import fitted
from tests.models.zoo.libraries import SUBJECTS, missing
from tests.models.zoo.shrink import LEVELS, small
from tests.models.zoo.trial import verdict

DTYPES = (torch.float64, torch.float32)
PRECISION = re.compile("dtype|double|float", re.IGNORECASE)  # in errors
LARGEST = 65_000_000  # parameters of a model
# sharper weights leave one key to each row
SOFT = dict.fromkeys(
    ("mobilebert", "patchtst", "superglue", "timm davit_tiny", "timm visformer_tiny"), 0.3
)
BASE = "MODEL_MAPPING_NAMES"
GENERATORS = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
)


@dataclass(frozen=True)
class Entry:
    """An architecture of transformers with the classes that can stand for it, of which the first that
    builds is tried; or a subject of another library, which has none.
    """

    architecture: str
    models: tuple[str, ...] = ()


@dataclass
class Subject:
    """A model that was built.

    Attributes:
        model: the module.
        run: calls it once, the same way each time.
        dtype: of its numbers.
        tokens: True where a token is no padding [B,N]; None without padding.
        fed: names of its inputs.
    """

    model: torch.nn.Module
    run: object
    dtype: torch.dtype
    tokens: torch.Tensor | None = None
    fed: list = field(default_factory=list)


@dataclass
class Record:
    """One line of the cache: an entry and its verdict."""

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


def architectures():
    """Architectures of transformers that have a model of their own, in the order of their names."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    names = {
        n for n in dir(modeling_auto) if n.startswith("MODEL_") and n.endswith("MAPPING_NAMES")
    }
    tables = [BASE, *GENERATORS, *sorted(names - {BASE, *GENERATORS})]
    found = {}
    for architecture, config in sorted(CONFIG_MAPPING_NAMES.items(), key=lambda pair: len(pair[0])):
        models = [m for t in tables for m in _names(getattr(modeling_auto, t).get(architecture))]
        models = tuple(dict.fromkeys(models))
        if models:
            found.setdefault((config, models[0]), Entry(architecture, models))
    return sorted(found.values(), key=lambda entry: entry.architecture)


def others():
    """Models of other libraries."""
    return [Entry(name) for name in SUBJECTS]


def _names(value):
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def built(entry, dtypes=DTYPES):
    """A small model of an entry, with a call that it takes; raises the first error otherwise."""
    errors = []
    for dtype in dtypes:
        if errors and not any(PRECISION.search(str(error)) for error in errors):
            break  # another precision would not help
        for name in _standing(entry) or [None]:
            for level in LEVELS if name else LEVELS[:1]:
                try:
                    return (
                        _of_transformers(entry, name, level, dtype)
                        if name
                        else _other(entry, dtype)
                    )
                except Exception as error:
                    errors.append(error)
    raise RuntimeError(f"{type(errors[0]).__name__}: {errors[0]}")


def _standing(entry):
    """Classes that are tried for an entry."""
    chosen = CLASSES.get(entry.architecture)
    return [chosen] if chosen else entry.models[:2]


def _of_transformers(entry, name, level, dtype):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    torch.manual_seed(7)
    torch.set_default_dtype(dtype)
    kind = _class(name, entry.architecture)
    config = small(CONFIG_MAPPING[entry.architecture], level)
    config._experts_implementation = "eager"  # grouped products have no double
    count = _parameters(kind, config)
    if count > LARGEST:
        raise MemoryError(f"{count} parameters at level {level}")
    with undrawn():
        model = kind(config).to(dtype).eval()
    sharpen(model, SOFT.get(entry.architecture, 1.5))
    with torch.no_grad():
        inputs = fitted(model, lambda batch: _forward(model, batch))
    return Subject(model, lambda: _forward(model, inputs), dtype, fed=list(inputs))


def _class(name, architecture):
    """A class of models; some are not among the names of the package."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if hasattr(transformers, name):
        return getattr(transformers, name)
    home = CONFIG_MAPPING[architecture].__module__.replace("configuration_", "modeling_")
    return getattr(importlib.import_module(home), name)


def _other(entry, dtype):
    package = missing(entry.architecture)
    if package:
        raise ModuleNotFoundError(f"{package} is not installed")
    torch.manual_seed(7)
    torch.set_default_dtype(dtype)
    model, run, *tokens = SUBJECTS[entry.architecture]()
    sharpen(model, SOFT.get(entry.architecture, 1.5))
    with torch.no_grad():
        run()
    return Subject(model, run, next(model.parameters()).dtype, *tokens)


@contextmanager
def undrawn(large=1 << 14):
    """Modules are made without drawing their large weights, which sharpen() draws anyway."""
    own = {name: getattr(torch.Tensor, name) for name in ("normal_", "uniform_")}

    def draw(function, tensor, *args, **options):
        return tensor.zero_() if tensor.numel() > large else function(tensor, *args, **options)

    for name, function in own.items():
        setattr(torch.Tensor, name, partialmethod(partial(draw, function)))
    try:
        yield
    finally:
        for name in own:
            delattr(torch.Tensor, name)


def _parameters(kind, config):
    from transformers.initialization import meta_device_safe_creation_ops

    try:
        with torch.device("meta"), meta_device_safe_creation_ops(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return sum(p.numel() for p in kind(config).parameters())
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return 0


def sharpen(model, gain=1.5):
    """Weights that make attention sharp enough to tell errors."""
    torch.manual_seed(8)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if type(parameter.data) is not torch.Tensor or not parameter.is_floating_point():
                continue  # quantised
            if parameter.dim() >= 2:
                parameter.normal_(std=gain * max(1, parameter[0].numel()) ** -0.5)
            elif "sink" in name:
                parameter.normal_()


def _forward(model, batch):
    torch.manual_seed(5)
    return model(**batch)


def trial(entry):
    """The record of one entry."""
    began, before = time.process_time(), torch.get_default_dtype()
    record = Record(entry.architecture, *entry.models[:1])
    try:
        for dtypes in (DTYPES, DTYPES[1:]):  # some models compute nothing sensible in double
            _fill(record, built(entry, dtypes))
            if record.verdict != "harness":
                break
    except Exception as error:
        record.why = str(error)[:300]
    finally:
        torch.set_default_dtype(before)
    record.seconds = round(time.process_time() - began, 2)
    return record


def _fill(record, subject):
    record.model, record.fed = type(subject.model).__name__, subject.fed
    record.dtype = str(subject.dtype).removeprefix("torch.")
    found = verdict(subject.model, subject.run, dtype=subject.dtype, tokens=subject.tokens)
    vars(record).update(asdict(found))
