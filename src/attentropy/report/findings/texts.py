"""One explanation for each finding and alarm: the pages of the documentation and of every report.

Thresholds come from `models.diagnose.Thresholds` and from the alarms, so that a text always shows
the number in use.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from attentropy.models.diagnose import Thresholds, random_deficit
from attentropy.report.findings import pictures
from attentropy.report.findings.pictures import Drawing
from attentropy.training.alarms import EntropyCollapse, LogitGrowth


@dataclass(frozen=True, kw_only=True)
class FindingText:
    """What a finding means.

    Attributes:
        name: that of the finding or alarm.
        meaning: what such a head does.
        measured: the formula.
        threshold: the value from which it is reported, and why.
        harmless: when it costs nothing.
        remedy: what to do.
        healthy: a picture of a head without it.
        ill: a picture of a head with it.
    """

    name: str
    meaning: str
    measured: str
    threshold: str
    harmless: str
    remedy: str
    healthy: Drawing
    ill: Drawing

    @property
    def slug(self) -> str:
        """Its name in addresses.

        >>> EXPLAINED["exploding logits"].slug
        'exploding-logits'
        """
        return self.name.replace(" ", "-")


LIMITS = Thresholds()
WEIGHED = "A head that weighs the keys it sees."


def _map(caption: str, scores: pictures.Array) -> Drawing:
    return Drawing(caption, pictures.heat_map(pictures.weights(scores)))


@cache
def _healthy() -> Drawing:
    return _map(WEIGHED, pictures.healthy())


def _not_finite() -> FindingText:
    table = pictures.weights(pictures.healthy())
    table[6:] = np.nan
    return FindingText(
        name="not finite",
        meaning="An entropy or a logit is NaN or infinite. Everything that the model computes "
        "after such a head is worthless.",
        measured="H or max s is NaN, +inf or -inf in at least one row that sees a key.",
        threshold="One such row is enough. There is no number to choose.",
        harmless="Never.",
        remedy="Look for overflow in queries and keys (float16 ends at 65,504), and for weights "
        "or inputs that are not finite. Run the layer in float32 to see whether it goes away.",
        healthy=_healthy(),
        ill=Drawing("From the seventh query on every weight is NaN.", pictures.heat_map(table)),
    )


def _exploding() -> FindingText:
    exact, kept = pictures.shifted(60.0), pictures.rounded_to_bfloat16(pictures.shifted(60.0))
    return FindingText(
        name="exploding logits",
        meaning="Logits are so large that the precision of the model rounds them by a quarter or "
        "more. The softmax turns a rounding of 0.25 into weights that err by 28 %.",
        measured="max s, the largest logit of any row of the head.",
        threshold=f"{LIMITS.most_logit:g} in bfloat16, where neighbouring numbers are 0.25 apart; "
        f"critical from {LIMITS.critical_logit:g}. Other precisions reach the same rounding at "
        "400 (float16) and 3.3 million (float32), and are judged there.",
        harmless="When the kernel keeps logits in float32 until the softmax, as fused kernels "
        "and attentropy's own do: then only what is stored in bfloat16 is rounded.",
        remedy="Compute the logits in a higher precision. While a model trains, normalise queries "
        "and keys, or clip them (qk_clip_), before the growth reaches this limit.",
        healthy=_map("Logits around 60 in float32.", exact),
        ill=_map("The same logits, rounded to bfloat16.", kept),
    )


def _large() -> FindingText:
    return FindingText(
        name="large logits",
        meaning="Logits are large, and the precision of the model holds them.",
        measured="max s, the largest logit of any row of the head.",
        threshold=f"More than {LIMITS.most_logit:g}, where bfloat16 would round by 0.25.",
        harmless="Always, in the precision that the model runs in now.",
        remedy="Nothing now. Think of it before you convert the model to bfloat16.",
        healthy=_healthy(),
        ill=_map("Large logits look like any others until they are rounded.",
                 pictures.shifted(60.0)),
    )  # fmt: skip


def _uniform() -> FindingText:
    deficit = random_deficit(1e9, LIMITS.random_spread)
    return FindingText(
        name="near-uniform",
        meaning="The head gives nearly the same weight to every key: it computes an average.",
        measured="log n - H, how far the entropy is below that of equal weights.",
        threshold=f"Below {deficit:.2g} (n - 1) / n nats, which random scores of a standard "
        f"deviation of {LIMITS.random_spread:g} would give: less selective than chance.",
        harmless="When the model uses the average. Many models have a few such heads.",
        remedy="Compare the loss with the head pruned. If nothing changes, remove it.",
        healthy=_healthy(),
        ill=_map("Every key gets about the same weight.", pictures.healthy() * 0.05),
    )


def _collapsed() -> FindingText:
    return FindingText(
        name="collapsed",
        meaning="Each query copies a single key, and that key is neither the first nor the "
        "previous one. The head cannot weigh what it sees.",
        measured="e^H, the number of keys that a row looks at, averaged over rows.",
        threshold=f"Fewer than {LIMITS.collapsed_perplexity:g} keys. Heads that rest on the first "
        "key or copy the previous one are sharp by nature and are left out.",
        harmless="When the head copies one key on purpose, for example the matching bracket.",
        remedy="Compare the loss with the head pruned. In training: lower the learning rate, "
        "normalise queries and keys, or give the entropy a floor (nn.EntropyLoss).",
        healthy=_healthy(),
        ill=_map("One key per query takes everything.", pictures.on_one_key()),
    )


def _saturated() -> FindingText:
    return FindingText(
        name="saturated",
        meaning="The softmax is so sharp that little gradient passes through it: the head can "
        "hardly learn to look elsewhere.",
        measured="1 - sum p^2, the share of the gradient that a row of softmax passes.",
        threshold=f"Below {LIMITS.least_flow:g}, averaged over rows: a twentieth of what spread "
        "attention passes.",
        harmless="When the model is used as it is and not trained further.",
        remedy="While it learns: lower the learning rate, or normalise queries and keys.",
        healthy=_healthy(),
        ill=_map("Nearly all weights are 0 or 1.", pictures.on_one_key()),
    )


def _dead() -> FindingText:
    alive = [0.8, 0.65, 0.9, 0.7, 0.75, 0.85, 0.6, 0.8]
    return FindingText(
        name="dead",
        meaning="The head writes next to nothing into its layer's output, wherever it looks.",
        measured="The norm of the head's output, against the median of its layer.",
        threshold=f"At most {LIMITS.dead_norm:.0%} of the median: removing the head changes its "
        "layer's output by about as little.",
        harmless="Always, but it costs time and memory.",
        remedy="Prune it.",
        healthy=Drawing("Output norms of the eight heads of a layer.",
                        pictures.bars(alive, marked=-1)),
        ill=Drawing("The sixth head is dead.",
                    pictures.bars([*alive[:5], 0.01, *alive[6:]], marked=5)),
    )  # fmt: skip


def _unfocused() -> FindingText:
    return FindingText(
        name="cannot focus",
        meaning="Scores are bounded, and the bound is too small for so many keys: even the best "
        "key cannot get half of the attention.",
        measured="1 / (1 + (n - 1) e^-R), the most that one of n keys can get when the logits of "
        "a row differ by R at most.",
        threshold=f"Below {LIMITS.focus:.0%}. It is judged only where score_range says what R is.",
        harmless="When no head needs to single out a key.",
        remedy="Raise the scale of the normalised scores, or let it grow with log n.",
        healthy=_map("A range of 8: one key can win.", np.eye(pictures.TOKENS) * 8),
        ill=_map("A range of 1: nothing stands out.", np.eye(pictures.TOKENS) * 1),
    )


def _sink() -> FindingText:
    return FindingText(
        name="sink",
        meaning="Most of the attention rests on the first key, or on a learned sink: the head has "
        "nothing to say about most tokens, and this is how it says nothing.",
        measured="The share of the first key, or of the sink, averaged over rows.",
        threshold=f"More than {LIMITS.sink:g}: the first key takes clearly more than all others "
        "together.",
        harmless="Always. Most trained language models have many such heads.",
        remedy="Keep the first token in sliding windows and in trimmed caches; without it such "
        "models break.",
        healthy=_healthy(),
        ill=_map("The first key takes most.", pictures.on_the_first()),
    )


def _duplicates() -> FindingText:
    return FindingText(
        name="duplicates",
        meaning="Two heads of a layer look at the same keys with the same weights.",
        measured="The cosine between the weights of two heads, over sampled rows.",
        threshold=f"More than {LIMITS.likeness:g}, an angle of 6 degrees. Near-uniform heads, "
        "sinks and previous-key heads are alike by nature and are left out.",
        harmless="Always. Their values may still differ.",
        remedy="One of the two may be merged or pruned; compare the loss.",
        healthy=_healthy(),
        ill=_map("The other head looks exactly the same.", pictures.healthy()),
    )


def _positional() -> FindingText:
    return FindingText(
        name="positional only",
        meaning="The weights follow the distance alone, whatever the tokens say.",
        measured="The cosine of the weights with the mean weight at each distance, and the share "
        "of the previous key.",
        threshold=f"A cosine above {LIMITS.positional:g} (an angle of 14 degrees), or a share of "
        "the previous key above 0.9.",
        harmless="Always. Heads that look at the previous token are useful and common.",
        remedy="Nothing. A fixed window would serve as well, if speed matters.",
        healthy=_healthy(),
        ill=_map("The same stripe for every query.",
                 pictures.at_distance(lambda d: -3.0 * np.abs(d - 1))),
    )  # fmt: skip


def _growing() -> FindingText:
    lengths = np.linspace(0, 1, 9)
    return FindingText(
        name="entropy grows with length",
        meaning="The longer the text, the more keys the head spreads over.",
        measured="The slope of H on log n over the lengths that were read; 1 is that of scores "
        "that do not change, 0 is a constant entropy.",
        threshold=f"More than {LIMITS.slope:g}. Heads that a window limits are left out, because "
        "what they see does not grow.",
        harmless="By itself always: within the trained length most heads of healthy models do "
        "this.",
        remedy="Look at the loss at each length. Only a loss that rises needs a remedy, and a "
        "scan tries those.",
        healthy=Drawing("Entropy against log n: about the same.",
                        pictures.curve((0.45 + 0.1 * lengths).tolist())),
        ill=Drawing("Entropy grows with log n.", pictures.curve((0.1 + 0.85 * lengths).tolist())),
    )  # fmt: skip


def _logit_growth() -> FindingText:
    alarm, steps = LogitGrowth(), np.linspace(0, 1, 12)
    return FindingText(
        name="logit growth",
        meaning="In training, the largest logit of a head grows towards a size at which softmax "
        "saturates and low precision rounds. Losses often diverge soon after.",
        measured="max s of each head, sample by sample, and a line through the latest samples.",
        threshold=f"{alarm.limit:g} now, or when the lower end of the forecast passes it: a line "
        f"through the last {alarm.window} samples, continued for as many steps as they span, with "
        f"{alarm.confidence:.0%} confidence. Heads below {alarm.share * alarm.limit:g} are not "
        "judged.",
        harmless="In float32, as long as the loss falls.",
        remedy="Clip queries and keys when the alarm rings (it takes an action, such as clip(30)), "
        "lower the learning rate, or normalise queries and keys.",
        healthy=Drawing("The largest logit settles.",
                        pictures.curve((0.5 * (1 - np.exp(-4 * steps))).tolist(), limit=0.9)),
        ill=Drawing("It grows towards the limit.",
                    pictures.curve((0.1 + 0.85 * steps**1.5).tolist(), limit=0.9)),
    )  # fmt: skip


def _entropy_collapse() -> FindingText:
    alarm, steps = EntropyCollapse(), np.linspace(0, 1, 12)
    return FindingText(
        name="entropy collapse",
        meaning="In training, the entropy of a head falls within a few samples to almost nothing: "
        "each query suddenly looks at one key.",
        measured="H of each head, against the latest samples and the first ones.",
        threshold=f"Below {alarm.floor:g} nats and below {alarm.share:.0%} of what it was within "
        f"the last {alarm.window} samples; or below log {alarm.least_keys:g} = "
        f"{math.log(alarm.least_keys):.2g} nats and below {alarm.share:.0%} of what it was at the "
        "start.",
        harmless="When the head learns to copy one key, and the loss falls with it.",
        remedy="Lower the learning rate, clip or normalise queries and keys, or give the entropy "
        "a floor.",
        healthy=Drawing("Entropy falls as the head learns.",
                        pictures.curve((0.9 - 0.35 * steps).tolist(), limit=0.15)),
        ill=Drawing("Entropy falls to nothing.",
                    pictures.curve((0.03 + 0.85 / (1 + np.exp(14 * (steps - 0.6)))).tolist(),
                                   limit=0.15)),
    )  # fmt: skip


EXPLAINED: dict[str, FindingText] = {
    one.name: one
    for one in (
        _not_finite(), _exploding(), _large(), _collapsed(), _dead(), _unfocused(), _uniform(),
        _saturated(), _sink(), _duplicates(), _positional(), _growing(), _logit_growth(),
        _entropy_collapse(),
    )
}  # fmt: skip
"""Explanations by the names of findings and alarms."""


def explained(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The explanations of some findings or alarms as plain data; names without one are left out.

    Args:
        names: those that a page shows.
    """
    return {name: asdict(EXPLAINED[name]) for name in dict.fromkeys(names) if name in EXPLAINED}
