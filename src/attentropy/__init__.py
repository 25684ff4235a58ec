"""Where is attention sharp, blurred or broken? Public names only; each is imported on first use.

Nothing heavy is imported with the package itself, so that the command line starts at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attentropy._version import __version__ as __version__

if TYPE_CHECKING:
    from attentropy.attention import attend as attend
    from attentropy.attention import explain as explain
    from attentropy.attention import key_mass as key_mass
    from attentropy.kernels.doctor import doctor as doctor
    from attentropy.layouts import contiguous as contiguous
    from attentropy.layouts import zigzag as zigzag
    from attentropy.observe.calibrate import calibrate as calibrate
    from attentropy.observe.diagnose import diagnose as diagnose
    from attentropy.observe.monitor import Monitor as Monitor
    from attentropy.observe.plan import Plan as Plan
    from attentropy.observe.steer import steer as steer
    from attentropy.observe.watch import watch as watch
    from attentropy.ring import ring_attend as ring_attend
    from attentropy.scans.scan import scan as scan
    from attentropy.scans.schema import Scan as Scan
    from attentropy.totals import reduce_heads as reduce_heads

_HOMES = {
    "attentropy.attention": "attend explain key_mass",
    "attentropy.ring": "ring_attend",
    "attentropy.layouts": "Layout contiguous zigzag",
    "attentropy.totals": "reduce_heads",
    "attentropy.kernels.doctor": "doctor",
    "attentropy.types": "Attended HeadStats Stats",
    "attentropy.states": "RowState",
    "attentropy.errors": (
        "ArgumentError ArgumentTypeError AttentropyError DistributedError UnsupportedError"
    ),
    "attentropy.masks": (
        "Mask causal full lookback lookahead prefix documents padding strided dense"
    ),
    "attentropy.scores": "Dot Cosine Additive Relative ALiBi",
    "attentropy.scales": (
        "InverseSqrt LogLength LogLengthFrom Mixed Temperature Constant PowerLength HoldEntropy"
    ),
    "attentropy.observe.watch": "watch",
    "attentropy.observe.diagnose": "diagnose",
    "attentropy.observe.steer": "steer",
    "attentropy.observe.calibrate": "calibrate",
    "attentropy.observe.monitor": "Monitor",
    "attentropy.observe.plan": "Plan",
    "attentropy.weights": "Softmax Gumbel Hard ReluSquared Linear Kernelised L1 L2 Decay",
    "attentropy.scans.scan": "scan",
    "attentropy.scans.schema": "Scan",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
_SUBPACKAGES = (
    "nn", "analysis", "theory", "observe", "integrations", "lab", "scans", "report",
    "attention", "errors", "kernels", "masks", "ring", "scales", "scores", "states", "types",
    "weights",
)  # fmt: skip

__all__ = [*_HOME_OF, "__version__"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return import_module(f"attentropy.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'attentropy' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBPACKAGES])
