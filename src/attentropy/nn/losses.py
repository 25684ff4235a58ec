"""Losses on the statistics of attention.

The sign matters: minimising task + c * H with c > 0 *lowers* the entropy. EntropyLoss is to be
added to the task's loss, and a positive coefficient rewards entropy.

How it compares with label smoothing. Smoothing targets by e adds e * KL(u || p), u uniform: every
key that gets nothing costs, without bound. Rewarding entropy adds c * KL(p || u) = c * (log n - H):
bounded by c * log n, and flat where p is one-hot (its gradient there goes to 0 like p log p). So a
reward cannot mend a head that is one-hot already; label smoothing could, but needs every weight.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.core.results import Stats
from attentropy.nn._checks import number


class EntropyLoss(nn.Module):
    """-coefficient * mean H; coefficient * mean (H - target)^2; or a squared distance from a band.

    Add it to the task's loss. Means are over rows with two visible keys or more; with several
    layers, over layers. H is in nats.

    Args:
        coefficient: with neither target nor band, positive rewards and negative punishes entropy.
        target: the entropy that every row should have; coefficient > 0.
        band: (least, most); entropy between them costs nothing; coefficient > 0. Either may be
            None.

    >>> import torch, attentropy as at
    >>> q = torch.zeros(1, 1, 4, 8)
    >>> _, stats = at.attend(q, q, q)
    >>> at.nn.EntropyLoss(0.5)(stats)
    tensor(-0.6931)
    """

    def __init__(
        self,
        coefficient: float,
        target: float | None = None,
        band: tuple[float | None, float | None] | None = None,
    ) -> None:
        super().__init__()
        self.coefficient = number("EntropyLoss: coefficient", coefficient)
        if target is not None and band is not None:
            raise ArgumentError("EntropyLoss: band", "None where a target is given", band)
        if (target is not None or band is not None) and coefficient <= 0:
            raise ArgumentError("EntropyLoss: coefficient", "> 0 with target or band", coefficient)
        self.band = _band((target, target) if band is None and target is not None else band)

    def forward(self, stats: Stats | Iterable[Stats]) -> Tensor:
        """The loss of the statistics of one layer, or the mean over layers.

        Args:
            stats: of one layer, or of several.
        """
        return _mean_over(stats, self._of)

    def _of(self, stats: Stats) -> Tensor:
        h = _entropy("EntropyLoss", stats)
        if self.band is None:
            return -self.coefficient * _mean(h, stats.visible >= 2)
        least, most = self.band
        self._reachable(stats)
        miss = (least - h).relu().square() + (h - most).relu().square()
        return self.coefficient * _mean(miss, stats.visible >= 2)

    def _reachable(self, stats: Stats) -> None:
        """No row has more entropy than log n: refuse a floor that none can reach."""
        assert self.band is not None
        if torch.compiler.is_compiling() or not stats.visible.numel():
            return
        most = float(stats.visible.max().clamp(min=1).float().log())
        if self.band[0] > most + 1e-6:
            rule = f"at most log n = {most:.4f}, n the most keys that a row sees"
            raise ArgumentError("EntropyLoss: the wanted entropy", rule, self.band[0])

    def extra_repr(self) -> str:
        """Coefficient and band."""
        return f"coefficient={self.coefficient}, band={self.band}"


class ZLoss(nn.Module):
    """coefficient * mean lse^2: keeps log-sum-exp, and with it the logits, near zero.

    Softmax does not change when a constant is added to a row's logits; this loss pins it.

    Args:
        coefficient: positive.
    """

    def __init__(self, coefficient: float = 1e-4) -> None:
        super().__init__()
        self.coefficient = number("ZLoss: coefficient", coefficient, above=0.0)

    def forward(self, stats: Stats | Iterable[Stats]) -> Tensor:
        """The loss of the statistics of one layer, or the mean over layers.

        Args:
            stats: of one layer, or of several.
        """
        return _mean_over(stats, self._of)

    def _of(self, stats: Stats) -> Tensor:
        if not isinstance(stats, Stats) or stats.lse is None:
            got = "lse None" if isinstance(stats, Stats) else type(stats).__name__
            raise ArgumentTypeError("ZLoss: stats", "statistics with an lse", got)
        seen = stats.visible > 0
        return self.coefficient * _mean(stats.lse.masked_fill(~seen, 0.0).square(), seen)

    def extra_repr(self) -> str:
        """Coefficient."""
        return f"coefficient={self.coefficient}"


def _band(band: tuple[float | None, float | None] | None) -> tuple[float, float] | None:
    if band is None:
        return None
    if not isinstance(band, tuple | list) or len(band) != 2:
        raise ArgumentTypeError("EntropyLoss: band", "a pair (least, most)", repr(band))
    least = 0.0 if band[0] is None else number("EntropyLoss: the least entropy", band[0])
    most = torch.inf if band[1] is None else number("EntropyLoss: the most entropy", band[1])
    if least < 0 or most < least:
        raise ArgumentError("EntropyLoss: the wanted entropy", "0 <= least <= most", (least, most))
    return least, most


def _entropy(owner: str, stats: Stats) -> Tensor:
    if not isinstance(stats, Stats) or stats.entropy is None:
        got = "entropy None" if isinstance(stats, Stats) else type(stats).__name__
        raise ArgumentTypeError(f"{owner}: stats", "statistics with an entropy", got)
    return stats.entropy


def _mean(x: Tensor, where: Tensor) -> Tensor:
    """Mean over the rows `where`; 0 if there are none."""
    return x.masked_fill(~where, 0.0).sum() / where.sum().clamp(min=1)


def _mean_over(stats: Stats | Iterable[Stats], of: object) -> Tensor:
    if not isinstance(stats, Stats | Iterable):
        raise ArgumentTypeError("stats", "Stats, or several of them", type(stats).__name__)
    layers = [stats] if isinstance(stats, Stats) else list(stats)
    if not layers:
        raise ArgumentError("stats", "of at least one layer", "none")
    return torch.stack([of(one) for one in layers]).mean()  # type: ignore[operator]
