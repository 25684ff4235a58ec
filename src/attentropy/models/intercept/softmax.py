"""Code that computes its attention by hand: its softmax is observed, and nothing is changed.

While the tap is in, `softmax` of torch, of torch.nn.functional and of tensors report rows of
weights to the innermost running module if it is watched and looks like attention. What happens to
the weights afterwards is not seen, so there is no output norm.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.core.results import Attended
from attentropy.models.intercept import huggingface, running
from attentropy.models.intercept.compute import changes_of, leave
from attentropy.models.intercept.running import Working
from attentropy.models.record.accumulators import owner_of
from attentropy.models.record.model_call import Asked
from attentropy.models.record.recorder import heads_of, softmax_stats
from attentropy.models.record.visibility import FAR, nowhere, read_table
from attentropy.models.steer.changes import Change

BY_HAND = "attention computed by hand"


@dataclass(frozen=True, eq=False, kw_only=True)
class Tapped(Asked):
    """A call of which only the logits `s` [B,H,Q,K] are known."""

    s: Tensor

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        batch, heads, queries, keys = self.s.shape
        return batch, heads, queries, keys

    @property
    def head_dim(self) -> int:
        return 0

    def attend(self) -> Attended:
        raise AssertionError("a tapped softmax is only observed")

    def logits_of_first(self, rows: slice) -> Tensor:
        return self.s[:, :, rows, 0]

    def logits_of(self, key: Tensor | None) -> Tensor:
        if key is None:
            key = torch.zeros(1, 1, 1, dtype=torch.int64, device=self.s.device)
        index = key.clamp(0, self.s.shape[3] - 1).expand(self.s.shape[:3])
        picked = self.s.gather(-1, index[..., None])[..., 0]
        return picked.masked_fill(~self.sight.sees(key), -torch.inf)

    def logits_before(self) -> Tensor:
        assert self.sight.own is not None
        return self.logits_of(self.sight.own.view(1, 1, -1) - 1)

    def scores_at(self, rows: Tensor) -> Tensor:
        return self.s[:, :, rows]


class _Tap:
    users = 0
    originals: tuple[Callable[..., Tensor], ...] = ()


def install() -> None:
    """One more user of the tap."""
    if not _Tap.users:
        _Tap.originals = (F.softmax, torch.softmax, torch.Tensor.softmax)
        F.softmax, torch.softmax = _tapped(F.softmax), _tapped(torch.softmax)
        torch.Tensor.softmax = _tapped(torch.Tensor.softmax)  # type: ignore[method-assign]
    _Tap.users += 1


def uninstall() -> None:
    """One user less; the last one puts everything back."""
    _Tap.users -= 1
    if not _Tap.users:
        F.softmax, torch.softmax = _Tap.originals[:2]
        torch.Tensor.softmax = _Tap.originals[2]  # type: ignore[method-assign]


def _tapped(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def softmax(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        # into memory that is there already, only a kernel writes: one of ours, called by a graph
        if Working.on or not isinstance(input, Tensor) or kwargs.get("out") is not None:
            return original(input, *args, **kwargs)
        Working.on = True
        try:
            weights = original(input, *args, **kwargs)
            if _is_last(input, args[0] if args else kwargs.get("dim")):
                _observe(input, weights)
        finally:
            Working.on = False
        return weights

    return softmax


def _is_last(x: Tensor, dim: Any) -> bool:
    return isinstance(dim, int) and dim in (-1, x.dim() - 1) and x.is_floating_point()


@torch.no_grad()
def _observe(logits: Tensor, weights: Tensor) -> None:
    module = running.current()
    if module is None:
        return
    if not torch.compiler.is_compiling() and _attends(module, logits):
        leave(module, BY_HAND)
    owner = owner_of(module)
    if owner is None or not owner.recorder.wants():
        return
    named = running.looks_like_attention(owner.name, module)
    shape = _four(module, logits, named=named)
    if shape is None:
        if named and logits.dim() > 3:
            owner.recorder.missed[owner.name] = _odd(module, logits)
        return
    s, p = logits.detach().reshape(shape), weights.detach().reshape(shape)
    s = s.double() if s.dtype == torch.float64 else s.float()
    seen = (s > nowhere(logits.dtype)) & ((s > FAR / 2) | (p > 0))
    sight = read_table(seen, shape[2], shape[3], cross=owner.kind == "cross")
    sight = replace(sight, real=_real(shape[0], shape[2]))
    nothing = s[..., :0]
    asked = Tapped(q=nothing, k=nothing, v=nothing, sight=sight, scale=1.0, s=s)
    owner.recorder.record(owner, asked, None, softmax_stats(s, p, seen))


def _real(batch: int, queries: int) -> Tensor | None:
    """Queries that are no padding, [B,1,Q], as the innermost transformers model was told.

    A mask that shows every query its own key, as that of XLNet does, does not tell.
    """
    if torch.compiler.is_compiling():
        return None
    model = next((m for m in reversed(Working.running) if huggingface.is_one(m)), None)
    owner = owner_of(model)
    tokens = None if owner is None else owner.tokens
    if tokens is None or tuple(tokens.shape) != (batch, queries):
        return None
    return (tokens != 0)[:, None]


def _attends(module: nn.Module, logits: Tensor) -> bool:
    """Is a softmax of a steered module one of attention?"""
    changes = changes_of(module)
    if not changes:
        return False
    name = next((change.touch.name for change in changes if isinstance(change, Change)), "")
    named = running.looks_like_attention(name, module)
    return (named and logits.dim() > 3) or _four(module, logits, named=named) is not None


def _four(module: nn.Module, logits: Tensor, *, named: bool) -> tuple[int, int, int, int] | None:
    """[B,H,Q,K] of attention logits; None if they do not look like it."""
    if logits.dim() == 4 and logits.numel():
        batch, heads, queries, keys = logits.shape
        known = (heads_of(module) or heads) if named else heads
        return (batch, heads, queries, keys) if heads == known else None
    if logits.dim() != 3 or not named or not logits.numel():
        return None
    both, queries, keys = logits.shape
    count = heads_of(module) or 1
    heads = count if both % count == 0 else 1
    return both // heads, heads, queries, keys


def _odd(module: nn.Module, logits: Tensor) -> str:
    heads = heads_of(module) or "H"
    return f"a softmax of shape {list(logits.shape)} where [B,{heads},Q,K] was expected"
