"""A model whose sequences are spread over ranks: each of its attention calls goes around the ring.

The model sees this rank's tokens only, so positions have to come from here: the mask is that of the
whole sequence, causal or full, with the model's sliding window and the padding of all ranks;
`position_ids` are given where the caller gives none (see sequences). A pass that continues a cache
attends the keys of each rank where they are. A model that hides keys in another way is refused,
because its masks describe this rank's tokens alone.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from attentropy.attention.cache import cache_attend
from attentropy.attention.ring import ring_attend
from attentropy.core.errors import UnsupportedError
from attentropy.core.masks import Mask, all_of, causal, dense, lookback
from attentropy.core.resolve import Options
from attentropy.core.results import Attended
from attentropy.core.visibility import Visibility
from attentropy.distributed.groups import peers
from attentropy.distributed.layouts import Spread
from attentropy.models.intercept.compute import ModelInputs
from attentropy.models.steer.sequences import Sequences, positions, refusal


@dataclass(frozen=True, eq=False)
class Spreading:
    """Turns a call on this rank's tokens into one on the sequence of all ranks.

    Attributes:
        spread: how sequences are spread over ranks.
        sequences: what is known of those of the running pass.
    """

    spread: Spread
    sequences: Sequences

    @property
    def stays(self) -> bool:
        """Do keys stay where they are because the pass continues a cache?"""
        return self.sequences.cached is not None

    def mask(self, module: nn.Module, given: ModelInputs) -> Mask | None:
        """The mask of the whole sequence; raises if the model's own is another.

        Args:
            module: makes the call.
            given: what it gives to the call.
        """
        if given.mask.positions is None:
            raise refusal(module, "cross attention")
        if given.options.bias is not None or given.mask.seen.added is not None:
            raise refusal(module, "a bias of its own")
        window, real = _window(module), self.sequences.padding
        is_causal = self.stays or self._is_causal(module, given, window)
        parts: list[Mask | None] = [causal if is_causal else None]
        if window is not None and is_causal:
            parts.append(lookback(window))
        if real is not None:
            parts.append(dense(real[:, None, None]))
        return all_of(tuple(part for part in parts if part is not None))

    def _is_causal(self, module: nn.Module, given: ModelInputs, window: int | None) -> bool:
        queries, device = given.q.shape[2], given.q.device
        if queries != given.k.shape[2]:
            raise refusal(module, "a cache that was not filled under it")
        (placed,) = self.spread.shares(queries, device=device)
        return _is_causal(module, given.mask.seen, positions(placed, device=device), window)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, options: Options) -> Attended:
        """Attention over the sequence of all ranks; `visible` and scales count all keys.

        Args:
            q: this rank's queries [B,H,Q,D].
            k: this rank's keys [B,Hk,K,D].
            v: this rank's values [B,Hk,K,Dv].
            options: of attend().
        """
        group, cached = self.spread.group, self.sequences.cached
        if cached is None:
            given = {"group": group, "layout": self.spread.layout}
            return ring_attend(q, k, v, **given, **options._asdict())
        if k.shape[2] > cached.own + cached.new:
            raise UnsupportedError("context_parallel does not support a cache of a fixed size")
        me = peers(group)
        here = cached.held(k.shape[2], ranks=me.size, rank=me.rank)
        return cache_attend(q, k, v, here=here, keys=cached.whole, group=group, **options._asdict())

    def refuse_attend(self, module: nn.Module) -> NoReturn:
        """Positions and caches inside a layer of attentropy would stay those of one rank."""
        raise UnsupportedError(
            f"steer(context_parallel=...) does not spread calls of attend(), which "
            f"{type(module).__name__} makes; give context_parallel= to the layer of attentropy.nn, "
            "or call attentropy.ring_attend in the model"
        )

    def leave(self, how: str) -> NoReturn:
        """Refused: the module would attend to this rank's tokens alone."""
        raise UnsupportedError(f"context_parallel cannot spread {how}")


def _window(module: nn.Module) -> int | None:
    """How many keys a query of the module sees at most, its own included; None for all."""
    found: Any = getattr(module, "sliding_window", None)
    if not hasattr(module, "sliding_window"):
        config: Any = getattr(module, "config", None)
        kinds, index = getattr(config, "layer_types", None), getattr(module, "layer_idx", None)
        slides = kinds is None or index is None or kinds[index] == "sliding_attention"
        found = getattr(config, "sliding_window", None) if slides else None
    return found if isinstance(found, int) else None


def _is_causal(module: nn.Module, seen: Visibility, own: Tensor, window: int | None) -> bool:
    """Is the model's mask causal, in its window? A jump of positions may begin another document."""
    if seen.shape in ("causal", "full"):
        return seen.shape == "causal"
    shown = seen.dense()
    places = torch.arange(len(own), device=own.device)
    apart = places[:, None] - places
    runs = torch.cumsum(own.diff(prepend=own[:1]) > 1, 0)
    below = apart >= 0
    for limit in (below, below & (apart < (window or len(own)))):
        for part in (limit, limit & (runs[:, None] == runs)):
            if bool((shown == part).all()):
                return True
    raise refusal(module, "a mask other than a causal one")


def give_positions(model: nn.Module, sequences: Sequences) -> Callable[[], None]:
    """Tell a transformers model where its tokens stand; returns the undo.

    Args:
        model: the model.
        sequences: of the model.
    """
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise refusal(model, "a forward pass without position_ids")
    hooks = (
        model.register_forward_pre_hook(sequences.before, with_kwargs=True),
        model.register_forward_hook(sequences.after, always_call=True),
    )

    def undo() -> None:
        for hook in hooks:
            hook.remove()

    return undo
