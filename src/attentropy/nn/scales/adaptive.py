"""A scale that reaches a target entropy, head by head.

H(lambda) never rises with lambda (dH/dlambda = -lambda Var_p(s) <= 0), so for given scores the
equation H(lambda) = target has at most one solution, and a bracket around it can only shrink. With

    phi = log((L - H) / H),   L = log n,   x = log lambda

phi(x) is close to a straight line, of slope 2 where attention is nearly uniform and of slope 1 to 2
where it freezes (Gaussian scores). Each update is a secant step in phi. Steps that gain little are
doubled until the solution lies between two scales; from then on the bracket halves at least every
second time. Multiplying lambda by target/H, a rule that is often written, goes the wrong way and
diverges from every start.
"""

import logging
import math

import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.core.results import HeadStats, Stats
from attentropy.nn._checks import count, number

_LOG = logging.getLogger("attentropy")
_SLOPE = 1.5
_SLOPES = (0.05, 200.0)
_FAR = 3.0  # the longest step into the unknown, in log lambda; doubles while it leads on
_EDGE = 0.02
_STALE = 1e-4
_FLOATS = ("log_gain", "low", "high", "last_x", "last_phi", "step", "width", "measured", "room")
_FLAGS = ("fresh", "saturated")


class AdaptiveScale(nn.Module):
    """lambda_h / sqrt(d), with lambda_h moved until head h has entropy `target_entropy`.

    As a scale rule it is a constant without gradient. `update(stats)` moves it once; a layer of
    attentropy.nn that has it as `scale` does that by itself in training, at the start of a forward
    pass, from what the pass before measured.

    The entropy of a head is its mean over rows with a choice (two visible keys or more), in nats.
    Updates stop while it is within `tolerance` (relative) of the target. Where no scale within
    `limits` gives the target (ties at the top, say), the scale stays at the limit, `saturated`
    [H] is True for that head, `report()` says why, and so does the log once.

    State dict: `log_gain` [H], log lambda, and the state of the search, each [H]. Without
    `num_heads` the number is taken from the first statistics. Under DDP the buffers of rank 0 are
    broadcast as usual; under FSDP call update() with statistics that are equal on every rank.

    Args:
        target_entropy: in nats; at least 0, and at most log n.
        num_heads: H; taken from the first statistics if not given.
        init: lambda of every head at first.
        tolerance: relative distance from the target at which updates stop.
        limits: the least and the greatest lambda.

    >>> rule = AdaptiveScale(2.0, num_heads=4, init=8.0)
    >>> rule
    AdaptiveScale(target_entropy=2.0, num_heads=4)
    """

    log_gain: Tensor
    low: Tensor
    high: Tensor
    last_x: Tensor
    last_phi: Tensor
    step: Tensor
    width: Tensor
    measured: Tensor
    room: Tensor
    fresh: Tensor
    saturated: Tensor

    def __init__(
        self,
        target_entropy: float,
        num_heads: int | None = None,
        *,
        init: float = 1.0,
        tolerance: float = 0.005,
        limits: tuple[float, float] = (1e-6, 1e6),
    ) -> None:
        super().__init__()
        self.target_entropy = number("AdaptiveScale: target_entropy", target_entropy)
        if target_entropy < 0:
            raise ArgumentError("AdaptiveScale: target_entropy", "in [0, log n]", target_entropy)
        self.num_heads = None if num_heads is None else count("AdaptiveScale: num_heads", num_heads)
        self.tolerance = number("AdaptiveScale: tolerance", tolerance, above=0.0)
        low, high = limits
        if not 0 < low < high < math.inf:
            raise ArgumentError("AdaptiveScale: limits", "0 < low < high < inf", limits)
        self.limits = (math.log(low), math.log(high))
        start = math.log(number("AdaptiveScale: init", init, above=0.0))
        heads = 1 if num_heads is None else num_heads
        for name in _FLOATS:
            self.register_buffer(name, torch.full((heads,), torch.nan))
        for name in _FLAGS:
            self.register_buffer(name, torch.zeros(heads, dtype=torch.bool))
        self.log_gain.fill_(min(max(start, self.limits[0]), self.limits[1]))
        self._reopen(torch.ones(heads, dtype=torch.bool))

    def forward(self, head_dim: int, visible: Tensor) -> Tensor:
        """The scale, [1,H,1].

        Args:
            head_dim: D.
            visible: visible keys of each row, broadcastable to [B,H,Q].
        """
        return self.log_gain.exp().view(1, -1, 1) * head_dim**-0.5

    @property
    def gain(self) -> Tensor:
        """Lambda of each head, [H]."""
        return self.log_gain.exp()

    def report(self) -> str:
        """One line for each head that cannot reach the target; empty if there is none."""
        lines = []
        for h in self.saturated.nonzero().flatten().tolist():
            side = "above" if self.measured[h] > self.target_entropy else "below"
            lines.append(
                f"head {h}: entropy {float(self.measured[h]):.4g} stays {side} the target "
                f"{self.target_entropy:.4g} at the limit of the scale, "
                f"{float(self.gain[h]):.3g}/sqrt(d)"
            )
        return "\n".join(lines)

    def update(self, stats: Stats) -> "AdaptiveScale":
        """Measure the entropy of each head, and move its scale once.

        Args:
            stats: of a forward pass.
        """
        self.observe(stats)
        self.advance()
        return self

    @torch.no_grad()
    def observe(self, stats: Stats | HeadStats) -> None:
        """Keep the entropy of each head, and log n, for the next step; moves nothing.

        Args:
            stats: of a forward pass, of rows or of heads.
        """
        if not isinstance(stats, Stats | HeadStats) or stats.entropy is None:
            rule = "statistics of weights that have an entropy"
            raise ArgumentTypeError("AdaptiveScale: stats", rule, type(stats).__name__)
        heads = stats.per_head() if isinstance(stats, Stats) else stats
        assert heads.entropy is not None
        assert heads.deficit is not None
        self.fit(len(heads.entropy))
        measured, room = heads.entropy, heads.entropy + heads.deficit
        self._check(room)
        self.measured.copy_(measured)
        self.room.copy_(room)
        self.fresh.copy_(~measured.isnan())

    @torch.no_grad()
    def advance(self) -> None:
        """Move each head's scale once from what was last observed; then nothing is pending."""
        before = self.saturated.clone()
        self._search(self.fresh)
        self.fresh.fill_(False)
        if not torch.compiler.is_compiling():
            self._announce(before)

    def extra_repr(self) -> str:
        """Target and heads."""
        return f"target_entropy={self.target_entropy}, num_heads={self.num_heads}"

    def _search(self, pending: Tensor) -> None:
        x, h, room = self.log_gain, self.measured, self.room
        target = torch.full_like(h, self.target_entropy)
        gap = _phi(target, room) - _phi(h, room)
        done = (h - target).abs() <= self.tolerance * target + 1e-6
        active = pending & ~done
        rising = gap > 0
        at_limit = torch.where(rising, x >= self.limits[1] - 1e-6, x <= self.limits[0] + 1e-6)
        self.saturated.copy_(torch.where(pending, active & at_limit, self.saturated))
        self._narrow(active, rising)
        candidate = x + self._stride(gap)
        candidate = self._kept_inside(candidate)
        self._remember(active, _phi(h, room), candidate)
        self._reopen(pending & done)
        x.copy_(torch.where(active, candidate, x).clamp(*self.limits))

    def _narrow(self, active: Tensor, rising: Tensor) -> None:
        """The present scale is an end of the bracket; a collapsed bracket is one of other data."""
        x = self.log_gain
        low = torch.where(active & rising, x, self.low)
        high = torch.where(active & ~rising, x, self.high)
        stale = active & (high - low < _STALE)
        self.low.copy_(torch.where(stale & ~rising, -torch.inf, low))
        self.high.copy_(torch.where(stale & rising, torch.inf, high))

    def _stride(self, gap: Tensor) -> Tensor:
        """A secant step; twice the last step where that one gained little."""
        moved = _phi(self.measured, self.room) - self.last_phi
        slope = moved / (self.log_gain - self.last_x)
        usable = slope.isfinite() & (slope > _SLOPES[0]) & (slope < _SLOPES[1])
        stride = gap / torch.where(usable, slope, _SLOPE)
        onward = (self.step.sign() == gap.sign()) & (self.step != 0)
        double = 2 * self.step.abs()
        least = torch.where(onward & (gap.abs() > (gap + moved).abs() / 2), double, 0.0)
        most = torch.where(onward, double.clamp(min=_FAR), _FAR)
        return stride.sign() * stride.abs().clamp(min=least, max=most)

    def _kept_inside(self, candidate: Tensor) -> Tensor:
        """Inside the bracket, and in its middle if the last step did not halve it."""
        width = self.high - self.low
        closed = width.isfinite()
        middle = torch.where(closed, (self.low + self.high) / 2, candidate)
        inside = (candidate > self.low + _EDGE * width) & (candidate < self.high - _EDGE * width)
        slow = width > self.width / 2
        self.width.copy_(width)
        return torch.where(closed & (slow | ~inside), middle, candidate)

    def _remember(self, active: Tensor, phi: Tensor, candidate: Tensor) -> None:
        self.step.copy_(torch.where(active, candidate - self.log_gain, self.step))
        self.last_x.copy_(torch.where(active, self.log_gain, self.last_x))
        self.last_phi.copy_(torch.where(active, phi, self.last_phi))

    def _reopen(self, where: Tensor) -> None:
        """Forget the search, so that it can start again when the scores have moved."""
        for name, value in (
            ("low", -torch.inf),
            ("high", torch.inf),
            ("width", torch.inf),
            ("step", 0.0),
        ):
            buffer: Tensor = getattr(self, name)
            buffer.masked_fill_(where, value)
        for name in ("last_x", "last_phi"):
            getattr(self, name).masked_fill_(where, torch.nan)

    def _check(self, room: Tensor) -> None:
        if torch.compiler.is_compiling():
            return
        most = float(room.nan_to_num(torch.inf).min())
        if self.target_entropy > most * (1 + 1e-6) + 1e-6:
            rule = f"in [0, log n] = [0, {most:.4f}]"
            raise ArgumentError("AdaptiveScale: target_entropy", rule, self.target_entropy)

    def fit(self, heads: int) -> None:
        """Set the number of heads, if it is not known yet.

        Args:
            heads: H.
        """
        if self.num_heads == heads:
            return
        if self.num_heads is not None:
            raise ArgumentError("AdaptiveScale: the number of heads", f"{self.num_heads}", heads)
        self.num_heads = heads
        for name in (*_FLOATS, *_FLAGS):
            setattr(self, name, getattr(self, name).expand(heads).clone())

    def _announce(self, before: Tensor) -> None:
        if bool((self.saturated & ~before).any()):
            _LOG.warning("AdaptiveScale: %s", self.report())

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *rest: object) -> None:
        """A rule whose number of heads is still open takes that of the state dict."""
        saved = state_dict.get(f"{prefix}log_gain")
        if saved is not None and self.num_heads is None and saved.dim() == 1:
            self.fit(len(saved))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _phi(entropy: Tensor, room: Tensor) -> Tensor:
    """log((L - H) / H), with both terms kept off zero by what float32 entropies resolve."""
    floor = 1e-6 * room.clamp(min=1.0)
    return ((room - entropy).clamp(min=floor)).log() - entropy.clamp(min=floor).log()
