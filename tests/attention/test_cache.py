"""Keys held in pieces, some of which do not count, are attended as one sequence.

Processes are tried in tests/models/steer/test_sequences.py.
"""

import pytest
import torch

import attentropy as at
from attentropy.attention.cache import cache_attend
from attentropy.distributed.cache import HeldKeys


@pytest.mark.parametrize(
    "options",
    [
        {"mask": at.causal},
        {"mask": at.causal & at.lookback(5), "scale": at.LogLengthFrom(4)},
        {"mask": at.dense(torch.arange(11) > 2) & at.causal, "softcap": 3.0},
        {"sink": torch.tensor([0.1, 0.2, -0.5, 0.0])},
    ],
    ids=["causal", "window", "padding", "sink"],
)
def test_pieces_are_one_sequence(options):
    q = torch.randn(2, 4, 3, 8)
    k, v = (torch.randn(2, 2, 11, 8) for _ in range(2))
    # positions 4..6 stand first, 0..3 after them, a key that does not count, then the rest
    order = [4, 5, 6, 0, 1, 2, 3, 9, 7, 8, 9, 10]
    held = [(range(4, 7), slice(0, 3)), (range(4), slice(3, 7)), (range(7, 11), slice(8, 12))]
    here = tuple(HeldKeys(*one) for one in held)
    with torch.no_grad():
        got = cache_attend(q, k[:, :, order], v[:, :, order], here=here, keys=11, **options)
        want = at.attend(q, k, v, **options)
    torch.testing.assert_close(got.out, want.out)
    for name in ("entropy", "lse", "max_logit", "collision", "varentropy", "visible", "argmax"):
        torch.testing.assert_close(getattr(got.stats, name), getattr(want.stats, name))


def test_what_does_not_merge_is_refused():
    q, k = torch.randn(1, 1, 1, 4), torch.randn(1, 1, 2, 4)
    here = (HeldKeys(range(2), slice(0, 2)),)
    with pytest.raises(at.UnsupportedError, match="does not take ReluSquared weights"):
        cache_attend(q, k, k, here=here, keys=2, weights=at.ReluSquared())
    with pytest.raises(at.UnsupportedError, match="call it under torch.no_grad"):
        cache_attend(q.requires_grad_(), k, k, here=here, keys=2)
