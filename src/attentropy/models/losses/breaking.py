"""why_it_breaks(): does distance or dilution cause the damage past the trained length?"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from attentropy.core.errors import ArgumentError
from attentropy.distributed.team import ALONE, Team
from attentropy.models.losses.cause import Cause, CauseName, Gap
from attentropy.models.losses.paired import Paired, paired, stretches
from attentropy.models.losses.probes import (
    distance_probe,
    no_clipping,
    no_distance,
    number_probe,
    thinned_probe,
)
from attentropy.models.losses.tokens import each_row, token_losses, truncated_losses

LAST = 1024
LEAST = 0.02  # nats per token that count as damage
MOST = 0.75  # share of the damage that makes one cause the cause


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
    team: Team = ALONE,
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
        team: processes that share the windows out; each has the model and all arguments.
    """
    length = tokens.shape[1]
    if length <= trained:
        raise ArgumentError("tokens", f"longer than the trained length {trained}", length)
    last = judged_tokens(model, length, trained) if last is None else last

    def read(losses: Callable[[Tensor], Tensor]) -> Tensor:
        return each_row(model, losses, tokens, team=team)

    if whole is None:
        whole = read(lambda row: token_losses(model, row, chunk=chunk)[:, -last:])
    if truncated is None:
        truncated = read(
            lambda row: truncated_losses(
                model, row, trained=trained, last=last, begin=begin, chunk=chunk
            )
        )
    clips = no_clipping(model) is None
    if clips:  # the same keys, distances of training
        between = read(
            lambda row: number_probe(model, row, trained=trained, last=last, chunk=chunk)
        )
        dilution, distance = (truncated, between), (between, whole)
    else:  # the same distances, as many keys as in training
        between = read(lambda row: thinned_probe(model, row, trained=trained, last=last))
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
        gaps=_gaps(model, tokens, trained, team),
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


def _gaps(model: nn.Module, tokens: Tensor, trained: int, team: Team) -> list[Gap]:
    possible = no_distance(model) is None and trained >= 8
    return distance_probe(model, tokens, trained=trained, team=team) if possible else []


def _missing(model: nn.Module) -> str:
    """Which probe does not exist for the model, and why."""
    why = no_distance(model)
    if why is None:
        return ""
    said = f"There is no distance probe, because {why}"
    if no_clipping(model) is None:
        return f"{said}; the number probe clips positions."
    return f"{said}; the number probe leaves out far keys in place of clipping positions."
