"""A logits processor for generate() of transformers that looks at entropy.

    with at.watch(model) as w:
        model.generate(ids, do_sample=True, logits_processor=[at.EntropyLogitsProcessor(w)])

Before each token the processor knows entropy and varentropy of the logits and of the attention that
made them. A rule turns them into a temperature for every sequence.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import LogitsProcessor

from attentropy.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    AttentropyError,
    UnsupportedError,
)
from attentropy.models.watch import Watch


class NextToken(NamedTuple):
    """What is known when the next token of each sequence is chosen, [B] each, in nats.

    Attributes:
        entropy: of the distribution over the vocabulary; tokens at -inf do not count.
        varentropy: the variance of -log p under that distribution.
        attention_entropy: mean over the heads, for the query that chooses the token. Padding
            and other hidden keys do not count, nor do heads that see a single key.
        attention_varentropy: mean over the same heads.
        top_probability: the largest weight, mean over the same heads.
        running: False for sequences that have ended.
    """

    entropy: Tensor
    varentropy: Tensor
    attention_entropy: Tensor
    attention_varentropy: Tensor
    top_probability: Tensor
    running: Tensor


Rule = Callable[[NextToken], Tensor]
"""Says the temperature of every sequence, [B], positive."""


@dataclass(frozen=True)
class TemperatureByEntropy:
    """T = base * exp(a H + b V + c H_attention + d V_attention), between `low` and `high`.

    A positive factor makes choices freer where the number is large, a negative one more greedy.

    Args:
        base: temperature where all four numbers are 0.
        entropy: factor a of the entropy of the logits.
        varentropy: factor b of the varentropy of the logits.
        attention_entropy: factor c of the entropy of attention.
        attention_varentropy: factor d of the varentropy of attention.
        low: the lowest temperature.
        high: the highest temperature.

    >>> rule = TemperatureByEntropy(entropy=-0.5)
    >>> zero = torch.zeros(2)
    >>> rule(NextToken(torch.tensor([0.0, 2.0]), zero, zero, zero, zero, zero == 0))
    tensor([1.0000, 0.3679])
    """

    base: float = 1.0
    entropy: float = -0.1
    varentropy: float = 0.1
    attention_entropy: float = -0.1
    attention_varentropy: float = 0.1
    low: float = 0.2
    high: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high < float("inf"):
            raise ArgumentError("low", "positive and not above high", f"{self.low}, {self.high}")
        if not 0 < self.base < float("inf"):
            raise ArgumentError("base", "positive and finite", self.base)

    def __call__(self, now: NextToken) -> Tensor:
        """The temperature of every sequence, [B]."""
        grows = (
            self.entropy * now.entropy
            + self.varentropy * now.varentropy
            + self.attention_entropy * now.attention_entropy
            + self.attention_varentropy * now.attention_varentropy
        )
        return (self.base * grows.exp()).clamp(self.low, self.high)


class EntropyLogitsProcessor(LogitsProcessor):
    """scores / T, with a temperature T for every sequence, by entropies of logits and attention.

    Sequences that have ended keep their scores. Tokens at -inf stay there. Beam search and assisted
    decoding are refused, because their attention belongs to other sequences or tokens.

    Args:
        watch: a running watch of the model that generates.
        rule: from `NextToken` to the temperatures [B].

    >>> import attentropy as at
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1}
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=9, intermediate_size=8, **sizes))
    >>> ids = torch.tensor([[1, 2, 3]])
    >>> with at.watch(model) as w:
    ...     found = model.generate(ids, max_new_tokens=4, do_sample=True, eos_token_id=None,
    ...                            logits_processor=[at.EntropyLogitsProcessor(w)])
    >>> found.shape
    torch.Size([1, 7])
    """

    def __init__(self, watch: Watch, rule: Rule | None = None) -> None:
        if not isinstance(watch, Watch):
            raise ArgumentTypeError("watch", "what at.watch(model) gives", type(watch).__name__)
        self.watch = watch
        self.rule: Rule = TemperatureByEntropy() if rule is None else rule

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Scores of the next token, [B,V].

        Args:
            input_ids: tokens so far, [B,N].
            scores: logits of the next token, [B,V].
        """
        now = self._now(scores)
        by = torch.as_tensor(self.rule(now)).to(scores)
        if by.shape != now.entropy.shape or not bool(((by > 0) & by.isfinite()).all()):
            rule = f"positive temperatures, one for each of {len(scores)} sequences"
            raise ArgumentError("rule", rule, by.tolist())
        return torch.where(now.running[:, None], scores / by[:, None], scores)

    def _now(self, scores: Tensor) -> NextToken:
        generation = self.watch.recorder.generation
        if generation is None or not (generation.active or generation.refused):
            raise AttentropyError("the model that generates is not watched: generate inside `with`")
        if not generation.active:
            raise UnsupportedError(f"EntropyLogitsProcessor: {generation.refused}")
        entropy, varentropy = entropies(scores)
        attention = generation.attention().to(entropy)
        if attention.shape[1] != len(scores):
            raise UnsupportedError(
                f"EntropyLogitsProcessor: {len(scores)} scores of {attention.shape[1]} sequences"
            )
        running = generation.running(len(scores)).to(scores.device)
        return NextToken(entropy, varentropy, attention[0], attention[1], attention[2], running)


def entropies(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy and varentropy of softmax(scores) [B,V], in float32 or better; -inf has no part.

    Args:
        scores: logits, -inf where a token is excluded.

    >>> scores = torch.tensor([[0.0, 0.0, -torch.inf]], dtype=torch.float64)
    >>> [x.round(decimals=4).tolist() for x in entropies(scores)]
    [[0.6931], [0.0]]
    """
    wide = scores if scores.dtype == torch.float64 else scores.float()
    logs = wide.log_softmax(-1)
    p = logs.exp()
    surprise = torch.where(p > 0, -logs, 0.0)
    entropy = (p * surprise).sum(-1)
    spread = torch.where(p > 0, surprise - entropy[:, None], 0.0)
    return entropy, (p * spread.square()).sum(-1)
