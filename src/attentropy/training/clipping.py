"""QKClip: the largest logit of every head stays below a limit, with one message per step.

    clip = QKClip(model, limit=100.0)
    for batch in loader:
        for part in batch.split(8):
            model(part).loss.backward()
        optimizer.step(); optimizer.zero_grad()
        clip.step()

The largest logits of all forward passes since the last step count; passes that checkpointing
repeats in the backward pass do not. Processes that hold other rows (DDP, FSDP2) or other heads (a
mesh dimension "tp") agree by one all-reduce of a number per head, and each scales the rows of its
own part of the projections.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.distributed.failures import failing, wait
from attentropy.distributed.groups import Group, peers
from attentropy.models.intercept.candidates import heads_of, may_attend
from attentropy.models.record.accumulators import Owner
from attentropy.models.tensor_parallel import shared_heads
from attentropy.models.watch import Watch
from attentropy.nn._checks import number
from attentropy.nn.guards import clip_reason, projection_factors, scale_rows_, split_factors
from attentropy.nn.layers.invariant import EntropyInvariantAttention
from attentropy.nn.layers.multihead import MultiheadAttention

NORMS = ("q_norm", "k_norm", "q_layernorm", "k_layernorm", "query_norm", "key_norm")


@dataclass(frozen=True, eq=False)
class _Clipped:
    """A layer, and where its heads stand in the message."""

    name: str
    module: nn.Module
    heads: slice


class QKClip:
    """Scales the q and k projections of heads whose largest logit passed a limit.

    A head with largest logit m > limit gets the factor limit / m on its scores, as in
    attentropy.nn.qk_clip_. Layers of attentropy.nn are clipped, and modules with linear `q_proj`
    and `k_proj`, as transformers' Llama, Qwen2 and Mistral have them. A norm of queries and keys
    makes clipping pointless: such layers, and those with other projections, are in `left_alone`.

    Args:
        model: what is trained; it is watched from now on.
        limit: the largest logit that is left alone; positive.
        group: whose ranks agree; None for all. With pipeline parallelism, the ranks of one stage.

    Attributes:
        left_alone: names of layers with attention that are not clipped, with the reason.
    """

    def __init__(self, model: nn.Module, limit: float, *, group: Group = None) -> None:
        self.limit = number("QKClip: limit", limit, above=0.0)
        self.peers = peers(group)
        self.left_alone: dict[str, str] = {}
        self.shared = shared_heads(model)
        self.layers = list(self._layers(model))
        if not self.layers:
            rule = "one with layers of attentropy.nn, or with linear q_proj and k_proj"
            raise ArgumentError("model", rule, type(model).__name__)
        self.watch = Watch(model, sample=1)
        self.watch.recorder.training_only = True
        self.watch.start()

    def _layers(self, model: nn.Module) -> Iterator[_Clipped]:
        first = 0
        for name, module in may_attend(model):
            if not _projects(module):
                continue
            heads, reason = heads_of(module), _why_not(module)
            if heads is None or reason:
                self.left_alone[name] = reason or "its number of heads is not known"
                continue
            yield _Clipped(name, module, slice(first, first + heads))
            first += heads

    @torch.no_grad()
    def step(self) -> dict[str, Tensor]:
        """Clip by the largest logits since the last call; the factors [H] by the name of the layer.

        Every rank of the group calls it, after the optimiser's step.
        """
        largest = self._agreed(self._own())
        self.watch.clear()
        if not bool((largest < torch.inf).all()):
            raise ArgumentError(
                "QKClip: the largest logits", "below inf, not NaN", largest.tolist()
            )
        factors = self.limit / largest.clamp(min=self.limit)
        found = {layer.name: factors[layer.heads] for layer in self.layers}
        for layer in self.layers:
            if bool((found[layer.name] < 1).any()):
                for parameter, by in _by_rows(layer.module, found[layer.name]):
                    scale_rows_(parameter, by)
        return found

    def close(self) -> None:
        """Stop watching the model."""
        self.watch.stop()

    def _own(self) -> Tensor:
        """The largest logits that this process saw, of all heads; -inf where it saw none."""
        device = next(iter(self.watch.model.parameters())).device
        largest = torch.full((self.layers[-1].heads.stop,), -torch.inf, device=device)
        owners = {owner.name: owner for owner in self.watch.recorder.owners}
        for layer in self.layers:
            for top in _tops(owners[layer.name]):
                part = largest[layer.heads]
                if self.shared is not None and owners[layer.name].is_cut:
                    part = self.shared.own(part)
                torch.maximum(part, top.to(part), out=part)
        return largest

    def _agreed(self, mine: Tensor) -> Tensor:
        """The largest of all ranks: one all-reduce."""
        if self.peers.size == 1:
            return mine
        with failing("largest logits", self.peers.group):
            work = dist.all_reduce(mine, dist.ReduceOp.MAX, group=self.peers.group, async_op=True)
        wait(work, "largest logits", self.peers.group)
        return mine


def _tops(owner: Owner) -> Iterator[Tensor]:
    """The largest logits [H] of each place of a module that attended to itself."""
    for place, slot in owner.slots.items():
        if slot.length and place.kind == "self":
            yield slot.top.nan_to_num(torch.inf, torch.inf, -torch.inf)


def _projects(module: nn.Module) -> bool:
    """Does a module have projections of queries and keys?"""
    if isinstance(module, MultiheadAttention | EntropyInvariantAttention):
        return True
    return all(isinstance(getattr(module, name, None), nn.Module) for name in ("q_proj", "k_proj"))


def _why_not(module: nn.Module) -> str:
    """Why a layer is not clipped; "" if it is."""
    if isinstance(module, MultiheadAttention | EntropyInvariantAttention):
        return clip_reason(module)
    for name in ("q_proj", "k_proj"):
        if not isinstance(getattr(module, name), nn.Linear):
            return f"its {name} is not linear"
    normed = next((name for name in NORMS if getattr(module, name, None) is not None), None)
    return "" if normed is None else f"its {normed} makes logits independent of the projections"


def _by_rows(module: nn.Module, factor: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Parameters of queries and keys, each with the factor of every row."""
    if isinstance(module, MultiheadAttention | EntropyInvariantAttention):
        return projection_factors(module, factor)
    q, k = (getattr(module, name) for name in ("q_proj", "k_proj"))
    width = q.weight.shape[0] // len(factor)
    groups = k.weight.shape[0] // width
    if groups * width != k.weight.shape[0] or len(factor) % groups:
        raise UnsupportedError(f"QKClip does not know the heads of {type(module).__name__}")
    queries, keys = split_factors(factor, groups)
    pairs = ((q, queries), (k, keys))
    return [
        (parameter, each.repeat_interleave(width))
        for projection, each in pairs
        for parameter in (projection.weight, projection.bias)
        if parameter is not None
    ]
