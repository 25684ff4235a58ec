"""Made-up head rows, for tests that only read them."""

import math

from attentropy.core.statistics import NAMES, HeadRow

N = 64


def head_row(head=0, **changes) -> HeadRow:
    """A healthy head of a layer of 8 that sees 64 keys; `changes` are fields."""
    numbers = dict.fromkeys(NAMES, 0.0)
    numbers |= {
        "layer": "layers.0.attn", "index": 0, "call": 0, "phase": "forward", "kind": "self",
        "head": head, "heads": 8, "head_dim": 16, "causal": True, "length": N, "rows": 100,
        "twin": 1, "entropy": 2.5, "perplexity": 13.0, "normalized_entropy": 0.6,
        "visible": float(N), "deficit": math.log(N) - 2.5, "max_logit": 5.0, "collision": 0.1,
        "gradient_flow": 0.9, "output_norm": 1.0, "sink_mass": 0.1, "previous_share": 0.1,
        "positional": 0.5, "likeness": 0.4,
    }  # fmt: skip
    return HeadRow(**(numbers | changes))
