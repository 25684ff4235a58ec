"""The statistics of a scan: their names, formulas and how to read them.

p is one row of attention (one query), s its logits, n the number of keys that the query sees;
a head's number is the mean over its rows that had a choice (n of 2 or more). Logarithms are
natural.
"""

from typing import Literal, NamedTuple


class Statistic(NamedTuple):
    """One statistic: `low` and `high` say in a word what small and large values mean."""

    key: str
    label: str
    formula: str
    meaning: str
    low: str
    high: str
    unit: str = ""
    scale: Literal["linear", "log"] = "linear"
    bounds: tuple[float, float] | None = None


STATISTICS = (
    Statistic(
        "entropy",
        "Entropy",
        "H = −Σⱼ pⱼ log pⱼ",
        "How spread the attention is: 0 is one key, log n is all keys alike.",
        "focused",
        "spread",
        unit="nats",
    ),
    Statistic(
        "normalized_entropy",
        "Normalised entropy",
        "H / log n",
        "Entropy as a share of the most it could be: comparable between lengths.",
        "one key",
        "uniform",
        bounds=(0.0, 1.0),
    ),
    Statistic(
        "perplexity",
        "Attention perplexity",
        "exp H",
        "The number of keys that a query effectively looks at.",
        "few keys",
        "many keys",
        unit="keys",
        scale="log",
    ),
    Statistic(
        "sparsity",
        "Sparsity",
        "S = Σⱼ pⱼ / √(n Σⱼ pⱼ²)",
        "1 when all keys weigh alike, 1/√n when one key takes all.",
        "sparse",
        "dense",
        bounds=(0.0, 1.0),
    ),
    Statistic(
        "max_logit",
        "Maximum logit",
        "max over rows of maxⱼ sⱼ",
        "The largest score before the softmax; growth in training foretells instability.",
        "small",
        "large",
    ),
    Statistic(
        "top_probability",
        "Top probability",
        "maxⱼ pⱼ",
        "The weight of the key that a query looks at most.",
        "shared",
        "one winner",
        bounds=(0.0, 1.0),
    ),
    Statistic(
        "sink_mass",
        "Sink mass",
        "p of the first key (and of a learned sink)",
        "Attention parked on the first token, which carries no message.",
        "no sink",
        "all in the sink",
        bounds=(0.0, 1.0),
    ),
    Statistic(
        "output_norm",
        "Output norm",
        "‖Σⱼ pⱼ vⱼ‖",
        "How much the head writes; near 0 the head is dead.",
        "silent",
        "loud",
        scale="log",
    ),
    Statistic(
        "gradient_flow",
        "Gradient flow",
        "1 − Σⱼ pⱼ²",
        "The share of the gradient that passes the softmax; near 0 the head cannot learn.",
        "saturated",
        "learning",
        bounds=(0.0, 1.0),
    ),
    Statistic(
        "noise_robustness",
        "Noise robustness",
        "1 / √((e − 1) Σⱼ pⱼ²)",
        "Spread of the values over the error that unit Gaussian noise on the scores makes in the "
        "output: it grows with the square root of the number of keys averaged.",
        "fragile",
        "robust",
        scale="log",
    ),
    Statistic(
        "distance",
        "Attended distance",
        "Σⱼ pⱼ |i − j|",
        "How far back (or away) the head looks on average.",
        "local",
        "far",
        unit="tokens",
        scale="log",
    ),
    Statistic(
        "previous_share",
        "Previous-token share",
        "p of the key just before the query",
        "Near 1 the head copies the previous token, whatever it says.",
        "none",
        "all",
        bounds=(0.0, 1.0),
    ),
    Statistic(
        "spread",
        "Score spread",
        "standard deviation of sⱼ over the visible keys",
        "How far apart the logits of a row lie; 0 is uniform attention.",
        "flat",
        "steep",
        scale="log",
    ),
    Statistic(
        "received_concentration",
        "Received concentration",
        "Σⱼ rⱼ², rⱼ the share of all attention that key j receives",
        "High when a few keys draw the attention of every query.",
        "even",
        "concentrated",
        bounds=(0.0, 1.0),
    ),
)

# Kept in scan.json for the diagnosis, not shown on the page.
DIAGNOSTIC = ("deficit", "visible", "positional", "twin", "likeness")

STATISTIC = {statistic.key: statistic for statistic in STATISTICS}
