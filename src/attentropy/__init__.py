"""Where is attention sharp, blurred or broken? Public names only; each is imported on first use.

Nothing heavy is imported with the package itself, so that the command line starts at once. The
names stand twice below: as imports for type checkers and editors, and in `_HOMES` for Python. A
test compares both lists.
"""

from importlib import import_module
from threading import RLock
from typing import TYPE_CHECKING

from attentropy._version import __version__ as __version__

if TYPE_CHECKING:
    from attentropy import analysis as analysis
    from attentropy import distributed as distributed
    from attentropy import lab as lab
    from attentropy import models as models
    from attentropy import nn as nn
    from attentropy import report as report
    from attentropy import scans as scans
    from attentropy import theory as theory
    from attentropy import training as training
    from attentropy.attention.attend import attend as attend
    from attentropy.attention.choice import explain as explain
    from attentropy.attention.key_mass import key_mass as key_mass
    from attentropy.attention.ring import ring_attend as ring_attend
    from attentropy.core import errors as errors
    from attentropy.core import masks as masks
    from attentropy.core import scales as scales
    from attentropy.core import scores as scores
    from attentropy.core import states as states
    from attentropy.core import weights as weights
    from attentropy.core.errors import ArgumentError as ArgumentError
    from attentropy.core.errors import ArgumentTypeError as ArgumentTypeError
    from attentropy.core.errors import AttentropyError as AttentropyError
    from attentropy.core.errors import DistributedError as DistributedError
    from attentropy.core.errors import UnsupportedError as UnsupportedError
    from attentropy.core.masks import Mask as Mask
    from attentropy.core.masks import causal as causal
    from attentropy.core.masks import dense as dense
    from attentropy.core.masks import documents as documents
    from attentropy.core.masks import full as full
    from attentropy.core.masks import lookahead as lookahead
    from attentropy.core.masks import lookback as lookback
    from attentropy.core.masks import padding as padding
    from attentropy.core.masks import prefix as prefix
    from attentropy.core.masks import strided as strided
    from attentropy.core.results import Attended as Attended
    from attentropy.core.results import HeadStats as HeadStats
    from attentropy.core.results import Stats as Stats
    from attentropy.core.scales import Constant as Constant
    from attentropy.core.scales import CosScale as CosScale
    from attentropy.core.scales import HoldEntropy as HoldEntropy
    from attentropy.core.scales import InfoScale as InfoScale
    from attentropy.core.scales import InverseSqrt as InverseSqrt
    from attentropy.core.scales import LogLength as LogLength
    from attentropy.core.scales import LogLengthFrom as LogLengthFrom
    from attentropy.core.scales import Mixed as Mixed
    from attentropy.core.scales import PowerLength as PowerLength
    from attentropy.core.scales import PowerLog as PowerLog
    from attentropy.core.scales import StepLog as StepLog
    from attentropy.core.scales import Temperature as Temperature
    from attentropy.core.scores import Additive as Additive
    from attentropy.core.scores import ALiBi as ALiBi
    from attentropy.core.scores import Cosine as Cosine
    from attentropy.core.scores import Dot as Dot
    from attentropy.core.scores import Relative as Relative
    from attentropy.core.states import RowState as RowState
    from attentropy.core.weights import L1 as L1
    from attentropy.core.weights import L2 as L2
    from attentropy.core.weights import Decay as Decay
    from attentropy.core.weights import Entmax as Entmax
    from attentropy.core.weights import Gumbel as Gumbel
    from attentropy.core.weights import Hard as Hard
    from attentropy.core.weights import Kernelised as Kernelised
    from attentropy.core.weights import Linear as Linear
    from attentropy.core.weights import ReluSquared as ReluSquared
    from attentropy.core.weights import Sigmoid as Sigmoid
    from attentropy.core.weights import Softmax as Softmax
    from attentropy.core.weights import Softpick as Softpick
    from attentropy.core.weights import Sparsemax as Sparsemax
    from attentropy.distributed.layouts import Layout as Layout
    from attentropy.distributed.layouts import contiguous as contiguous
    from attentropy.distributed.layouts import zigzag as zigzag
    from attentropy.distributed.reduce import reduce_heads as reduce_heads
    from attentropy.extensions.entropy_abf import entropy_abf as entropy_abf
    from attentropy.extensions.extend import extend as extend
    from attentropy.extensions.result import Extension as Extension
    from attentropy.kernels.doctor import doctor as doctor
    from attentropy.models.calibrate import calibrate as calibrate
    from attentropy.models.diagnose import diagnose as diagnose
    from attentropy.models.plan import Plan as Plan
    from attentropy.models.sampling import EntropyLogitsProcessor as EntropyLogitsProcessor
    from attentropy.models.sampling import TemperatureByEntropy as TemperatureByEntropy
    from attentropy.models.steer.steer import steer as steer
    from attentropy.models.watch import watch as watch
    from attentropy.scans.scan import scan as scan
    from attentropy.scans.schema import Scan as Scan
    from attentropy.training.monitor import Monitor as Monitor

_HOMES = {
    "attention.attend": "attend",
    "attention.choice": "explain",
    "attention.key_mass": "key_mass",
    "attention.ring": "ring_attend",
    "core.errors": (
        "ArgumentError ArgumentTypeError AttentropyError DistributedError UnsupportedError"
    ),
    "core.masks": "Mask causal dense documents full lookahead lookback padding prefix strided",
    "core.results": "Attended HeadStats Stats",
    "core.scales": (
        "Constant CosScale HoldEntropy InfoScale InverseSqrt LogLength LogLengthFrom Mixed "
        "PowerLength PowerLog StepLog Temperature"
    ),
    "core.scores": "Additive ALiBi Cosine Dot Relative",
    "core.states": "RowState",
    "core.weights": (
        "L1 L2 Decay Entmax Gumbel Hard Kernelised Linear ReluSquared Sigmoid Softmax Softpick "
        "Sparsemax"
    ),
    "distributed.layouts": "Layout contiguous zigzag",
    "distributed.reduce": "reduce_heads",
    "extensions.entropy_abf": "entropy_abf",
    "extensions.extend": "extend",
    "extensions.result": "Extension",
    "kernels.doctor": "doctor",
    "models.calibrate": "calibrate",
    "models.diagnose": "diagnose",
    "models.plan": "Plan",
    "models.sampling": "EntropyLogitsProcessor TemperatureByEntropy",
    "models.steer.steer": "steer",
    "models.watch": "watch",
    "scans.scan": "scan",
    "scans.schema": "Scan",
    "training.monitor": "Monitor",
}
_MODULES = {
    **{n: n for n in ("analysis", "distributed", "lab", "models", "nn")},
    **{n: n for n in ("report", "scans", "theory", "training")},
    **{n: f"core.{n}" for n in ("errors", "masks", "scales", "scores", "states", "weights")},
}
_IMPORTING = RLock()  # modules that import each other's packages may not be imported by two threads
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [*_HOME_OF, "__version__"]  # noqa: PLE0604

if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            with _IMPORTING:
                return import_module(f"attentropy.{_MODULES[name]}")
        if name not in _HOME_OF:
            raise AttributeError(f"module 'attentropy' has no attribute {name!r}")
        with _IMPORTING:
            value = getattr(import_module(f"attentropy.{_HOME_OF[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
