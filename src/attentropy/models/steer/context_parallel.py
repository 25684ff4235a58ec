"""A model whose sequences are spread over ranks: each of its attention calls goes around the ring.

The model sees this rank's tokens only, so what it knows of positions has to come from here: the
mask is that of the whole sequence, and `position_ids` are given where the caller gives none. A
model that hides keys in another way than causally (padding, windows, documents) is refused, for
its masks speak of this rank's tokens alone.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from attentropy.attention.ring import ring_attend
from attentropy.core.errors import UnsupportedError
from attentropy.core.masks import Mask, causal
from attentropy.core.resolve import Options
from attentropy.core.results import Attended
from attentropy.core.visibility import Visibility
from attentropy.distributed.layouts import Placed, Spread
from attentropy.models.intercept.compute import ModelInputs


@dataclass(frozen=True, eq=False)
class Spreading:
    """Turns a call on this rank's tokens into one on the sequence of all ranks."""

    spread: Spread

    def mask(self, module: nn.Module, given: ModelInputs) -> Mask | None:
        """The mask of the whole sequence; raises if the model's own is not causal or full.

        Args:
            module: makes the call.
            given: what it gives to the call.
        """
        queries = given.q.shape[2]
        if given.mask.positions is None or queries != given.k.shape[2]:
            raise _refusal(module, "cross attention or a cache (pass use_cache=False)")
        if given.options.bias is not None or given.mask.seen.added is not None:
            raise _refusal(module, "a bias of its own")
        (placed,) = self.spread.shares(queries, device=given.q.device)
        _check_window(module, placed)
        own = positions(placed, device=given.q.device)
        return causal if _is_causal(module, given.mask.seen, own) else None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, options: Options) -> Attended:
        """Attention over the sequence of all ranks; `visible` and scales count all keys.

        Args:
            q: this rank's queries [B,H,Q,D].
            k: this rank's keys [B,Hk,K,D].
            v: this rank's values [B,Hk,K,Dv].
            options: of attend().
        """
        over = {"group": self.spread.group, "layout": self.spread.layout}
        return ring_attend(q, k, v, **over, **options._asdict())

    def refuse_attend(self, module: nn.Module) -> NoReturn:
        """Positions and caches inside of a layer of attentropy would stay those of one rank."""
        raise UnsupportedError(
            f"steer(context_parallel=...) does not spread calls of attend(), which "
            f"{type(module).__name__} makes; give context_parallel= to the layer of attentropy.nn, "
            "or call attentropy.ring_attend in the model"
        )

    def leave(self, how: str) -> NoReturn:
        """Refused: the module would attend to this rank's tokens alone."""
        raise UnsupportedError(f"context_parallel cannot spread {how}")


def _refusal(module: nn.Module, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"context_parallel does not support {what}, which {type(module).__name__} uses"
    )


def _check_window(module: nn.Module, placed: Placed) -> None:
    for holder in (module, getattr(module, "config", None)):
        window = getattr(holder, "sliding_window", None)
        if isinstance(window, int) and window < placed.whole:
            raise _refusal(module, f"a window of {window} over {placed.whole} tokens")


def _is_causal(module: nn.Module, seen: Visibility, own: Tensor) -> bool:
    """Is the model's mask causal? transformers takes a jump of positions for another document."""
    if seen.shape in ("causal", "full"):
        return seen.shape == "causal"
    shown = seen.dense()
    runs = torch.cumsum(own.diff(prepend=own[:1]) > 1, 0)
    below = torch.ones_like(shown[0, 0]).tril()
    if bool((shown == below).all()) or bool((shown == (below & (runs[:, None] == runs))).all()):
        return True
    raise _refusal(module, "a mask other than a causal one")


def positions(placed: Placed, *, device: torch.device) -> Tensor:
    """Global positions of this rank's tokens, [n].

    Args:
        placed: which part of the sequence the rank holds.
        device: of the result.
    """
    runs = [torch.arange(run.start, run.stop, device=device) for run in placed.runs]
    return torch.cat(runs) if runs else torch.arange(0, device=device)


def give_positions(model: nn.Module, spread: Spread) -> Callable[[], None]:
    """Pass `position_ids` to a transformers model that gets none; returns the undo.

    Args:
        model: the model.
        spread: how its sequences are spread over ranks.
    """
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise _refusal(model, "a forward pass without position_ids")

    def before(model: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        tokens = kwargs.get("input_ids", args[0] if args else None)
        tokens = kwargs.get("inputs_embeds") if tokens is None else tokens
        if kwargs.get("position_ids") is None and tokens is not None:
            (placed,) = spread.shares(tokens.shape[1], device=tokens.device)
            places = positions(placed, device=tokens.device)
            kwargs = {**kwargs, "position_ids": places.expand(tokens.shape[0], -1)}
        return args, kwargs

    return model.register_forward_pre_hook(before, with_kwargs=True).remove
