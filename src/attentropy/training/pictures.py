"""Heat maps of all heads as pictures, for logs that show images."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attentropy.core.statistics import TABLE, HeadRow

CELL = 12
"""Pixels of a head."""

PICTURED = {
    name: shades for name, one in TABLE.items() if one.logged and (shades := one.shades) is not None
}
"""Where the colours of each pictured statistic begin and end."""

RAMP = ("#182a4d", "#1f4a80", "#236f96", "#3d9796", "#7cbd86", "#c3dc84", "#fbf5b2")
"""From low to high, ever lighter: the order survives colour blindness and grey print."""

UNKNOWN = 0.5  # the grey of a head that has no number, or is not there


def heat_map(rows: Sequence[HeadRow], name: str, *, low: float, high: float) -> Tensor:
    """Layers down, heads across: a picture [H,W,3] of a statistic, with colours from 0 to 1.

    A head without a number is grey.

    Args:
        rows: the rows of all heads.
        name: the name of the statistic.
        low: the value that is darkest.
        high: the value that is lightest.
    """
    places = max(row.index for row in rows) + 1
    heads = max(row.head for row in rows) + 1
    shares = torch.full((places, heads), torch.nan)
    for row in rows:
        shares[row.index, row.head] = (row[name] - low) / (high - low)
    picture = _coloured(shares.clamp(0, 1))
    picture[shares.isnan()] = UNKNOWN
    return picture.repeat_interleave(CELL, 0).repeat_interleave(CELL, 1)


def _coloured(shares: Tensor) -> Tensor:
    """The colour [...,3] at each share of the ramp, between its two nearest ones."""
    ramp = torch.tensor([[int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)] for text in RAMP])
    place = shares.nan_to_num(0.0) * (len(RAMP) - 1)
    first = place.long().clamp(max=len(RAMP) - 2)
    return torch.lerp(ramp[first], ramp[first + 1], (place - first).unsqueeze(-1))
