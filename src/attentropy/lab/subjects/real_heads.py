"""Real heads: the last rows of every head of a model that `watch` can watch, embedded or given.

    given = Given(model, ids, "my model")
    run(RunPlan(noise.on(given)), Path("out"))

is the experiment `noise` on them, as `attentropy lab noise --model MODEL` is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.core.results import Stats
from attentropy.kernels.tiled.logits import row_logits
from attentropy.lab.harness.experiment import Experiment, Row
from attentropy.lab.subjects.sample_text import embedded_model, sample_tokens
from attentropy.models.record.accumulators import Owner
from attentropy.models.record.model_call import ModelCall
from attentropy.models.record.recorder import Recorder
from attentropy.models.watch import Watch

EMBEDDED = "attentropy-embedded"


@dataclass(frozen=True, eq=False)
class Given:
    """A model whose heads an experiment takes.

    Attributes:
        model: any model that at.watch() can watch.
        tokens: ids of a text that it reads, one row.
        name: of the model in results.
        longest: largest number of tokens that the model takes; None means no limit.
        encode: a string to ids, for experiments that ask questions; None if there is none.
    """

    model: nn.Module
    tokens: Tensor
    name: str
    longest: int | None = None
    encode: Callable[[str], list[int]] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise ArgumentTypeError("model", "a torch.nn.Module", type(self.model).__name__)
        if self.tokens.dim() != 1 or self.tokens.is_floating_point():
            shape = list(self.tokens.shape)
            raise ArgumentError("tokens", "one row of ids", f"{self.tokens.dtype} {shape}")

    def fitting(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """The lengths that model and text allow; raises ArgumentError if fewer than two are left.

        Args:
            lengths: increasing.
        """
        most = len(self.tokens) if self.longest is None else min(self.longest, len(self.tokens))
        kept = tuple(n for n in lengths if n <= most)
        if len(kept) < 2:
            rule = f"long enough for {lengths[1]} tokens, and so must be its text"
            raise ArgumentError(f"model {self.name}", rule, most)
        return kept


def on_heads(
    experiment: Experiment,
    given: Given,
    *,
    conditions: Callable[[Any], Sequence[str]],
    measure: Callable[..., list[Row]],
) -> Experiment:
    """The experiment on the real heads of a given model, at those lengths that fit it.

    Args:
        experiment: what to change.
        given: model, text and name.
        conditions: of the changed experiment.
        measure: takes the keyword `given` too.
    """

    def fitted(config: Any) -> Any:
        lengths = given.fitting(config.real_lengths)
        return replace(config, model=given.name, real_lengths=lengths)

    return replace(
        experiment,
        full=fitted(experiment.full),
        quick=fitted(experiment.quick),
        conditions=conditions,
        measure=partial(measure, given=given),
    )


def given_embedded() -> Given:
    """The model of the package, with its sample text."""
    return Given(embedded_model(), sample_tokens(), EMBEDDED)


@dataclass(frozen=True, eq=False)
class Head:
    """Rows of one head, over all texts.

    Attributes:
        logits: [B,R,n], as the softmax gets them; -inf where a key is hidden.
        values: [B,n,Dv]; None where the model computes its softmax by hand.
        width: of queries and keys; 0 where it is not known.
    """

    logits: Tensor
    values: Tensor | None
    width: int


class _Taker(Recorder):
    """Keeps the last rows of every self-attention call instead of its statistics."""

    def __init__(self, rows: int) -> None:
        super().__init__(every=1, keep="mean", sample=1)
        self.rows = rows
        self.heads: list[Head] = []

    def prepare(
        self, owner: Owner, asked: ModelCall, out: Tensor | None, stats: Stats
    ) -> Callable[[], None]:
        commit = super().prepare(owner, asked, out, stats)
        call = asked.call
        queries, keys = call.q.shape[2], call.k.shape[2]
        if asked.is_cross or queries != keys or stats.lse is None:
            return commit
        s = row_logits(call, slice(max(0, queries - self.rows), queries))
        v = call.v.repeat_interleave(s.shape[1] // call.v.shape[1], 1)
        values = [None if asked.is_by_hand else v[:, h].detach() for h in range(s.shape[1])]
        heads = [Head(s[:, h].detach(), x, call.q.shape[3]) for h, x in enumerate(values)]

        def keep() -> None:
            commit()
            self.heads += heads

        return keep


@torch.no_grad()
def real_heads(given: Given, n: int, *, texts: int, seed: int, rows: int = 4) -> list[Head]:
    """The last rows of every head on random pieces of n tokens, so that each sees nearly n keys.

    Args:
        given: model, text and name.
        n: tokens of a piece.
        texts: number of pieces.
        seed: of the random numbers.
        rows: number of rows of each head.
    """
    rng = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, len(given.tokens) - n + 1, (texts,), generator=rng)
    device = next((p.device for p in given.model.parameters()), torch.device("cpu"))
    pieces = given.tokens[starts[:, None] + torch.arange(n)].to(device)
    watch = Watch(given.model)
    watch.recorder = taker = _Taker(rows)
    config = getattr(given.model, "config", None)
    options = {"use_cache": False} if getattr(config, "use_cache", False) else {}
    with watch:
        given.model(pieces, **options)
    if not taker.heads:
        raise ArgumentError(f"model {given.name}", "one with softmax self-attention", "none of it")
    return taker.heads
