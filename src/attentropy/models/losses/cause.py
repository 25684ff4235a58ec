"""why_it_breaks(): is the damage past the trained length distance, or dilution?"""

from collections.abc import Sequence
from typing import Literal

import msgspec
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError
from attentropy.models.losses.paired import Paired, paired, stretches
from attentropy.models.losses.probes import (
    Gap,
    distance_probe,
    no_clipping,
    no_distance,
    number_probe,
    position_limit,
    thinned_probe,
)
from attentropy.models.losses.tokens import token_losses, truncated_losses

LAST = 1024
LEAST = 0.02  # nats per token that count as damage
MOST = 0.75  # share of the damage that makes one cause the cause

CauseName = Literal["distance", "dilution", "both", "none"]


class Cause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The damage at the end of a long text, and what it is made of.

    damage = distance + dilution, each with its standard error over the same tokens.

    Attributes:
        name: "distance", "dilution", "both", or "none" where the loss does not rise.
        length: tokens of the long windows.
        trained: the trained length.
        damage: the loss with truncation to the trained length -> of the whole text.
        distance: what larger distances add.
        dilution: what more keys add.
        probe: "clipped" positions, or "thinned" keys for a model without position_ids.
        gaps: the distance probe; empty where it does not exist.
        missing: why a probe does not exist; "" if both do.
    """

    name: CauseName
    length: int
    trained: int
    damage: Paired
    distance: Paired
    dilution: Paired
    probe: Literal["clipped", "thinned"]
    gaps: list[Gap] = []
    missing: str = ""

    @property
    def sentence(self) -> str:
        """The cause in one sentence."""
        if self.name == "none":
            return f"Nothing breaks: {self._measured('The loss', self.damage)}."
        words = {
            "distance": "Distance is the cause, not the number of keys",
            "dilution": "Dilution is the cause: the number of keys, not their distance",
            "both": "Distance and dilution are both causes",
        }[self.name]
        return (
            f"{words}: of {self.damage.difference:+.2f} nats per token at {self.length:,} tokens, "
            f"{_share(self.distance)} come from distances beyond {self.trained:,} and "
            f"{_share(self.dilution)} from more keys."
        )

    def _measured(self, what: str, change: Paired) -> str:
        return (
            f"{what.lower()} at the end of {self.length:,} tokens is {change.after:.3f}, with "
            f"truncation to {self.trained:,} {change.before:.3f}"
        )


def _share(change: Paired) -> str:
    error = "" if change.error is None else f" ± {change.error:.2f}"
    return f"{change.difference:+.2f}{error}"


def why_it_breaks(
    model: nn.Module,
    tokens: Tensor,
    *,
    trained: int,
    last: int | None = None,
    whole: Tensor | None = None,
    truncated: Tensor | None = None,
    begin: Sequence[int] = (),
    chunk: int = 1024,
) -> Cause:
    """Read long windows whole, truncated, and with positions in the trained range; compare.

    Args:
        model: a causal model that predicts the next token.
        tokens: ids [B, N], N beyond the trained length.
        trained: the trained length.
        last: number of tokens at the end that are judged; by default `judged_tokens` of them.
        whole: token losses [B, last] of the untouched model, if they are known already.
        truncated: the same with truncation, if they are known already.
        begin: ids that every text begins with.
        chunk: number of tokens in one forward pass.
    """
    length = tokens.shape[1]
    if length <= trained:
        raise ArgumentError("tokens", f"longer than the trained length {trained}", length)
    last = judged_tokens(model, length, trained) if last is None else last
    if whole is None:
        whole = token_losses(model, tokens, chunk=chunk)[:, -last:]
    if truncated is None:
        truncated = truncated_losses(
            model, tokens, trained=trained, last=last, begin=begin, chunk=chunk
        )
    clips = no_clipping(model) is None
    if clips:  # the same keys, distances of training
        between = number_probe(model, tokens, trained=trained, last=last, chunk=chunk)
        dilution, distance = (truncated, between), (between, whole)
    else:  # the same distances, as many keys as in training
        between = thinned_probe(model, tokens, trained=trained, last=last)
        distance, dilution = (truncated, between), (between, whole)
    damage = _paired(truncated, whole)
    by_distance, by_number = _paired(*distance), _paired(*dilution)
    return Cause(
        name=_name(damage, by_distance, by_number),
        length=length,
        trained=trained,
        damage=damage,
        distance=by_distance,
        dilution=by_number,
        probe="clipped" if clips else "thinned",
        gaps=_gaps(model, tokens, trained),
        missing=_missing(model),
    )


def judged_tokens(model: nn.Module, length: int, trained: int) -> int:
    """Number of tokens at the end of a long window that are judged: a quarter of it, at most 1,024.

    All of them lie past the trained length. With clipped positions they are at most half of it, so
    that each has as many tokens with positions of their own before it.

    Args:
        model: the model.
        length: tokens of the window.
        trained: the trained length.
    """
    most = trained // 2 if no_clipping(model) is None else length // 4
    return max(1, min(LAST, most, length - trained))


def _paired(before: Tensor, after: Tensor) -> Paired:
    return paired(stretches(before), stretches(after))


def _name(damage: Paired, distance: Paired, dilution: Paired) -> CauseName:
    if not damage.hurts or damage.difference < LEAST:
        return "none"
    if distance.difference >= MOST * damage.difference:
        return "distance"
    return "dilution" if dilution.difference >= MOST * damage.difference else "both"


def _gaps(model: nn.Module, tokens: Tensor, trained: int) -> list[Gap]:
    possible = no_distance(model) is None and trained >= 8
    return distance_probe(model, tokens, trained=trained) if possible else []


def _missing(model: nn.Module) -> str:
    """Which probe does not exist for the model, and why."""
    if no_clipping(model) is not None:
        why = no_distance(model)
        return f"There is no distance probe and no clipped positions: {why}; far keys were thinned."
    if position_limit(model) is not None:
        return f"There is no distance probe: {no_distance(model)}."
    return ""
