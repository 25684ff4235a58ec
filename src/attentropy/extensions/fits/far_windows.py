"""Short windows that reach far: passkeys, plain text and questions at positions up to any length.

A window of 1,024 tokens whose positions are spread over 12,288 has the distances of a long text
and the cost of a short one: frequencies and temperatures can be fitted to retrieval by gradients.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor, nn

from attentropy.extensions import passkeys
from attentropy.extensions.candidates import Setting, Task, applied, why_unscaled
from attentropy.extensions.fits.temperatures import frozen
from attentropy.extensions.passkeys import Encode
from attentropy.models.intercept.candidates import device_of
from attentropy.models.losses.probes import no_distance
from attentropy.models.losses.reading import logits_of, read, takes
from attentropy.models.rope import rotary, settings
from attentropy.models.steer.steer import steer
from attentropy.models.tensor_parallel import shared_heads

WINDOW, LAST = 1024, 192
STEPS = 24
ROOM = 2  # windows that a trained length must hold at least
EVEN = 1e-4  # logarithm up to which a frequency counts as unchanged
RATE = {"waves": 0.03, "heads": 0.02}  # of Adam, on logarithms; they fall to 0


class FarWindow(NamedTuple):
    """One window.

    Attributes:
        ids: tokens [n].
        places: their positions [n].
        digits: the number of the passkey that a token is a digit of, -1 elsewhere [n].
        plain: True for plain text after the last passkey [n].
    """

    ids: Tensor
    places: Tensor
    digits: Tensor
    plain: Tensor


def far_window(
    text: Tensor,
    encode: Encode,
    *,
    reach: int,
    seed: int,
    size: int = WINDOW,
    last: int = LAST,
    begin: tuple[int, ...] = (),
) -> FarWindow:
    """Ten passkeys, `last` tokens of text, then ten questions; positions end with `reach`.

    Before each passkey the positions jump, so that the passkeys stand at even distances.

    Args:
        text: tokens, of which the window takes what it needs from a random place.
        encode: a string to tokens.
        reach: the position after the last token.
        seed: of the place, of the numbers and of the order of the questions.
        size: tokens of text and passkeys; the questions come on top.
        last: tokens of plain text before the questions.
        begin: special tokens before the text.
    """
    chance = torch.Generator().manual_seed(seed)
    start = int(torch.randint(len(text) - size + 1, (), generator=chance))
    found = passkeys.hidden(
        text[start : start + size], encode, length=size, last=last, seed=10_000 + seed
    )
    order = torch.randperm(len(found.questions), generator=chance).tolist()
    asked = [(i, found.questions[i]) for i in order]
    first = torch.tensor(begin, dtype=torch.long)
    body = torch.cat([first, found.ids])
    ids = torch.cat([body, *(part for _, q in asked for part in (q.prompt, q.answer))])
    digits = torch.cat(
        [
            torch.full((len(body),), -1),
            *(_marked(i, len(q.prompt), len(q.answer)) for i, q in asked),
        ]
    )
    places = _spread(len(ids), [len(begin) + key for key in found.places], reach, chance)
    index, end = torch.arange(len(ids)), len(body)
    return FarWindow(ids, places, digits, (index >= end - last) & (index < end))


def _marked(key: int, before: int, answer: int) -> Tensor:
    return torch.cat([torch.full((before,), -1), torch.full((answer,), key)])


def _spread(length: int, keys: Sequence[int], reach: int, chance: torch.Generator) -> Tensor:
    """Positions that jump a little before each key; the jumps are random and fill `reach`."""
    shares = torch.rand(len(keys), generator=chance) + 0.5
    ends = (shares.cumsum(0) / shares.sum() * (reach - length)).long()
    jumps = ends.diff(prepend=torch.zeros(1, dtype=torch.long))
    early = (keys[1] - keys[0]) // 8
    added = torch.zeros(length, dtype=torch.long)
    added[torch.tensor([max(1, key - early) for key in keys])] = jumps
    return torch.arange(length) + added.cumsum(0)


@dataclass(frozen=True)
class FarProbe:
    """Losses of some windows.

    Attributes:
        task: what settings are for.
        windows: the windows, of one length.
    """

    task: Task
    windows: tuple[FarWindow, ...]

    @classmethod
    def of(
        cls,
        text: Tensor,
        encode: Encode,
        task: Task,
        seeds: Sequence[int],
        *,
        begin: tuple[int, ...] = (),
    ) -> "FarProbe":
        """A window for each seed, with positions up to the length of the task.

        Args:
            text: tokens for calibration.
            encode: a string to tokens.
            task: what settings are for.
            seeds: one for each window.
            begin: special tokens before every text.
        """
        windows = [
            far_window(text, encode, reach=task.to, seed=seed, begin=begin) for seed in seeds
        ]
        return cls(task, tuple(windows))

    @torch.no_grad()
    def measured(self, setting: Setting, model: nn.Module) -> tuple[list[float], list[float]]:
        """The loss of the digits of each passkey, and of the plain text of each window.

        Args:
            setting: how to steer the model.
            model: the model.
        """
        digits: list[float] = []
        plain: list[float] = []
        handle = applied(setting, model, self.task)
        try:
            for window in self.windows:
                lost = losses(model, window)
                keys = window.digits[1:]
                digits += [float(lost[keys == i].mean()) for i in range(int(keys.max()) + 1)]
                plain.append(float(lost[window.plain[1:]].mean()))
        finally:
            handle.undo()
        return digits, plain


def losses(model: nn.Module, window: FarWindow) -> Tensor:
    """The loss of every token but the first, [n - 1]; 0 before the plain text.

    Args:
        model: a causal model that takes `position_ids`.
        window: what it reads.
    """
    device = device_of(model)
    ids = window.ids[None].to(device)
    options: dict[str, Any] = {
        "position_ids": window.places[None].to(device),
        "attention_mask": torch.ones_like(ids),
    }
    judged = len(window.ids) - int(window.plain.nonzero()[0])
    kept = judged + 1 if takes(model, "logits_to_keep") else len(window.ids)
    if kept == judged + 1:
        options["logits_to_keep"] = kept
    logits = logits_of(read(model, ids, **options), ids[:, -kept:])
    assert logits is not None
    scores = logits[0, -judged - 1 : -1].float()
    lost = nn.functional.cross_entropy(scores, ids[0, -judged:], reduction="none")
    return nn.functional.pad(lost, (len(window.ids) - 1 - judged, 0))


def fitted(
    base: Setting,
    model: nn.Module,
    probe: FarProbe,
    *,
    name: str,
    waves: bool,
    shared: bool,
    slow: bool = False,
    tell: Callable[[str], object] = lambda text: None,
) -> Setting:
    """A setting whose digits and plain text lose least in the windows, by gradient descent.

    Args:
        base: where to begin; it has settings of rope.
        model: the model; its weights do not change.
        probe: windows, one for each step, in turn.
        name: of the result.
        waves: fit a divisor for each frequency too.
        shared: one temperature for all heads of a layer, not one for each.
        slow: leave the frequencies alone that `base` does not slow down: they tell near tokens
            apart, at any length.
        tell: receives the step.
    """
    assert base.rope is not None
    rope = rotary.as_bands(model, base.rope)
    divisors = torch.tensor(rope.long_factor).log()
    layers = probe.task.layers
    heads = {layer: torch.zeros(1 if shared else n) for layer, n in layers.items()}
    groups: list[dict[str, Any]] = [{"params": list(heads.values()), "lr": RATE["heads"]}]
    if waves and slow:
        kept = divisors > EVEN
        divisors.requires_grad_().register_post_accumulate_grad_hook(_only(kept))
    if waves:
        groups.append({"params": [divisors], "lr": RATE["waves"]})
    with frozen(model):
        for step in _descend(groups, model, probe, rope, divisors, heads):
            tell(f"{name}, step {step + 1} of {STEPS}")
    found = divisors.detach().exp().tolist()
    factors = {
        layer: tuple(heads[layer].detach().exp().expand(n).tolist()) for layer, n in layers.items()
    }
    own = msgspec.structs.replace(rope, short_factor=tuple(found), long_factor=tuple(found))
    return Setting(name=name, rope=own, heads=factors)


def _only(kept: Tensor) -> Callable[[Tensor], None]:
    """A hook that sets gradients to 0 where nothing is kept, so that Adam does not move there."""

    def hook(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(kept)

    return hook


def between(base: Setting, found: Setting, model: nn.Module, *, share: float, name: str) -> Setting:
    """A setting between two: divisors and temperatures are weighted geometric means.

    A fit to short windows does not see how many keys a long text has. Part of the way costs less
    loss there, and keeps most of the retrieval.

    Args:
        base: where the fit began; it has settings of rope.
        found: what was fitted.
        model: has the frequencies.
        share: of the way from `base` to `found`, 0 to 1.
        name: of the result.
    """
    assert base.rope is not None
    assert found.rope is not None
    assert found.heads is not None
    begin, end = rotary.as_bands(model, base.rope).long_factor, found.rope.long_factor
    assert begin is not None
    assert end is not None
    divisors = tuple(a ** (1 - share) * b**share for a, b in zip(begin, end, strict=True))
    rope = msgspec.structs.replace(found.rope, short_factor=divisors, long_factor=divisors)
    heads = {layer: tuple(f**share for f in own) for layer, own in found.heads.items()}
    return Setting(name=name, rope=rope, heads=heads)


def _descend(
    groups: list[dict[str, Any]],
    model: nn.Module,
    probe: FarProbe,
    rope: settings.Rope,
    divisors: Tensor,
    heads: dict[str, Tensor],
) -> Iterator[int]:
    """Adam on the logarithms, one window a step; gives the number of each step before it."""
    for group in groups:
        for one in group["params"]:
            one.requires_grad_()
    optimizer = torch.optim.Adam(groups)
    fall = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / STEPS)
    for step in range(STEPS):
        yield step
        window = probe.windows[step % len(probe.windows)]
        temperature = {layer: (-log).exp().expand(n) for (layer, n), log in
                       zip(probe.task.layers.items(), heads.values(), strict=True)}  # fmt: skip
        handle = steer(model, temperature=temperature)
        try:
            with _turning(model, divisors, rope.attention_factor or 1.0):
                lost = losses(model, window)
        finally:
            handle.undo()
        optimizer.zero_grad()
        (lost[window.digits[1:] >= 0].mean() + lost[window.plain[1:]].mean()).backward()
        optimizer.step()
        fall.step()


def why_not(model: nn.Module, task: Task, encode: Encode | None) -> str | None:
    """Why nothing can be fitted to retrieval, in words; None if it can.

    Args:
        model: the model.
        task: what settings are for.
        encode: a string to tokens.
    """
    if encode is None:
        return "there is no tokenizer"
    if task.trained < ROOM * WINDOW:
        return f"windows of {WINDOW:,} tokens are too long for it"
    why = why_unscaled(model) or no_distance(model)
    shared = shared_heads(model)
    if shared and len({shared.cuts(model.get_submodule(name)) for name in task.layers}) > 1:
        why = why or "processes share the heads of some of its layers only"
    return why or (None if _turns_alike(model) else "it turns queries and keys in its own way")


def _turns_alike(model: nn.Module) -> bool:
    """Whether the angles that a fit uses are those of the model."""
    places = torch.arange(3, device=device_of(model))[None]
    x = torch.ones(1, device=places.device)
    modules: list[Any] = rotary.rotary_modules(model)
    for module in modules:
        own = _Angles(module.inv_freq, torch.zeros(()), float(module.attention_scaling))
        pairs = list(zip(module(x, places), own(x, places), strict=True))
        if any(a.shape != b.shape or not torch.allclose(a, b, atol=1e-5) for a, b in pairs):
            return False
    return len({module.inv_freq.shape for module in modules}) == 1


@contextmanager
def _turning(model: nn.Module, divisors: Tensor, factor: float) -> Iterator[None]:
    """Rotary modules whose angles have gradients for the logarithms of divisors."""
    modules: list[Any] = rotary.rotary_modules(model)
    shared = shared_heads(model)
    if shared is not None and not shared.gathered:
        divisors = shared.replicated(divisors)
    before = [vars(module).get("forward") for module in modules]  # others may have put one there
    for module in modules:
        module.forward = _Angles(module.inv_freq, divisors, factor)
    try:
        yield
    finally:
        for module, own in zip(modules, before, strict=True):
            del module.forward
            if own is not None:
                module.forward = own


@dataclass(frozen=True, eq=False)
class _Angles:
    """Cosines and sines of positions, as a rotary module of transformers gives them."""

    frequencies: Tensor
    divisors: Tensor
    factor: float

    def __call__(self, x: Tensor, position_ids: Tensor, **more: Any) -> tuple[Tensor, Tensor]:
        slowed = self.frequencies * (-self.divisors).exp().to(self.frequencies.device)
        angles = position_ids[..., None].float() * slowed
        both = torch.cat([angles, angles], -1)
        return (both.cos() * self.factor).to(x.dtype), (both.sin() * self.factor).to(x.dtype)
