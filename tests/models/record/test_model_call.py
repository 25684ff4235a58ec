"""A call of a model is a Call; of a softmax by hand the logits are its bias."""

import torch

from attentropy.core.call import Call
from attentropy.core.masks import Extent
from attentropy.core.resolve import Options, resolve
from attentropy.core.weights import Softmax
from attentropy.kernels.tiled.logits import pair_logits, row_logits
from attentropy.models.record.model_call import ModelCall
from attentropy.models.record.model_masks import causal_from_end, everything

CPU = torch.device("cpu")


def by_hand(s, mask):
    rows, keys = s[..., :0], s.mT[..., :0]
    return ModelCall(
        Call(rows, keys, keys, torch.ones(1, 1, 1), Softmax(), mask.seen, bias=s), mask
    )


def test_what_a_call_says_of_itself():
    q = torch.randn(1, 2, 3, 4)
    call = resolve(q, q, q, Options())
    extent = Extent(1, 2, 3, 3, CPU)
    assert not ModelCall(call, everything(extent)).is_cross
    assert ModelCall(call, everything(extent, cross=True)).is_cross
    assert not ModelCall(call, everything(extent)).is_by_hand
    assert by_hand(torch.randn(1, 2, 3, 3), everything(extent)).is_by_hand


def test_the_logits_of_a_softmax_by_hand_are_its_bias():
    s = torch.randn(2, 3, 4, 5)
    asked = by_hand(s, causal_from_end(Extent(2, 3, 4, 5, CPU)))
    hidden = ~torch.ones(4, 5).tril(1).bool()
    want = s.masked_fill(hidden, -torch.inf)
    assert torch.equal(row_logits(asked.call, torch.tensor([0, 2])), want[:, :, [0, 2]])
    assert torch.equal(row_logits(asked.call, slice(1, 3)), want[:, :, 1:3])
    key = torch.tensor([0, 3, 2, 9]).view(1, 1, 4)
    picked = torch.stack([want[:, :, 0, 0], want[:, :, 1, 3], want[:, :, 2, 2]], -1)
    got = pair_logits(asked.call, key)
    assert torch.equal(got[..., :3], picked)
    assert bool(got[..., 3].isneginf().all())
