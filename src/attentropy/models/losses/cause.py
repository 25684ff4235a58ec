"""Cause: whether distance or dilution causes the damage past the trained length."""

from typing import Literal

import msgspec

from attentropy.models.losses.paired import Paired

CauseName = Literal["distance", "dilution", "both", "none"]


class Gap(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Short windows whose second half stands `gap` positions further away.

    Attributes:
        gap: the number of positions left out between the halves.
        farthest: the largest distance between two tokens of a window.
        change: the loss of the second halves with the widest gap inside the trained range
            (before), and with this one (after).
    """

    gap: int
    farthest: int
    change: Paired


class Cause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The damage at the end of a long text, and its causes.

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
    def words(self) -> str:
        """The cause in a few words; "" if nothing breaks."""
        return {
            "none": "",
            "distance": "distance is the cause, not the number of keys",
            "dilution": "dilution is the cause (the number of keys), not distance",
            "both": "distance and the number of keys are both causes",
        }[self.name]

    @property
    def sentence(self) -> str:
        """The cause in one sentence, with what each part costs."""
        if self.name == "none":
            return (
                f"Nothing breaks: the loss at the end of {self.length:,} tokens is "
                f"{self.damage.after:.3f}, with truncation to {self.trained:,} "
                f"{self.damage.before:.3f}."
            )
        return (
            f"{self.words[0].upper()}{self.words[1:]}: of {self.damage.difference:+.2f} nats per "
            f"token at the end of {self.length:,} tokens, {_share(self.distance)} come from "
            f"distances beyond {self.trained:,} and {_share(self.dilution)} from more keys."
        )


def _share(change: Paired) -> str:
    error = "" if change.error is None else f" ± {change.error:.2f}"
    return f"{change.difference:+.2f}{error}"
