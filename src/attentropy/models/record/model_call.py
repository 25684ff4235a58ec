"""One attention call of a model: the Call for attend(), and what a Call cannot hold."""

from typing import NamedTuple

from attentropy.core.call import Call
from attentropy.models.record.model_masks import ModelMask


class ModelCall(NamedTuple):
    """A resolved call, and the mask of the model that it was made from.

    For a softmax that a model computes by hand only the logits are known: queries, keys and values
    have no width, so that scores are 0, and the logits are the bias. `by_attend` calls come from
    attend(), and not from a model's own code. Queries `in_blocks` are those of several parts of a
    sequence, one after the other.
    """

    call: Call
    mask: ModelMask
    by_attend: bool = False
    in_blocks: bool = False

    @property
    def is_cross(self) -> bool:
        """Do the keys come from elsewhere?"""
        return self.mask.cross

    @property
    def is_by_hand(self) -> bool:
        """Is it a softmax that the model computes by hand?"""
        return not self.call.q.shape[3]
