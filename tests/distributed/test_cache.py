"""States of keys that stay on their ranks merge into those of all keys."""

from dataclasses import dataclass

import pytest
import torch

import attentropy as at
from attentropy.core.states import read, unread
from attentropy.distributed.cache import HeldKeys, StayRoute, over_ranks
from attentropy.distributed.groups import Peers
from attentropy.distributed.merging import kept_of, state_of


@dataclass(frozen=True)
class Both(Peers):
    """A group of which the other rank sends what is given here."""

    other: torch.Tensor | None = None

    def gather(self, x):
        return [x, self.other]


@dataclass(frozen=True)
class Listening(Peers):
    """Keeps what would be sent."""

    sent: tuple = ()

    def gather(self, x):
        self.sent.append(x)
        return [x]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_parts_are_the_whole(dtype):
    q, k, v = (torch.randn(2, 3, n, 5, dtype=dtype) for n in (4, 9, 9))
    sent = []
    parts = []
    for first, last in ((0, 6), (6, 9)):
        found = at.attend(q, k[:, :, first:last], v[:, :, first:last])
        parts.append(kept_of(unread(found, first=first)))
    over_ranks(Listening(None, 1, 2, sent=sent), parts[1])
    (message,) = sent
    assert message.shape[-1] == 5 + 7 + (4 if dtype == torch.float32 else 2)
    got = read(state_of(over_ranks(Both(None, 0, 2, other=message), parts[0])))
    want = at.attend(q, k, v)
    torch.testing.assert_close(got.out, want.out)
    assert torch.equal(got.stats.argmax, want.stats.argmax)
    assert torch.equal(got.stats.visible, want.stats.visible)
    for name in ("entropy", "lse", "max_logit", "collision", "varentropy"):
        torch.testing.assert_close(getattr(got.stats, name), getattr(want.stats, name))


def test_counts_above_what_a_float_holds():
    q, k = torch.randn(1, 1, 1, 4), torch.randn(1, 1, 2, 4)
    state = unread(at.attend(q, k, k))
    far = state._replace(visible=torch.full_like(state.visible, 2**40 + 1))
    sent = []
    over_ranks(Listening(None, 0, 2, sent=sent), kept_of(far))
    got = state_of(over_ranks(Both(None, 0, 2, other=sent[0]), kept_of(far)))
    assert got.visible.item() == 2**41 + 2


def test_a_process_alone_sends_nothing():
    kept = kept_of(unread(at.attend(*(torch.randn(1, 1, 2, 4) for _ in range(3)))))
    assert over_ranks(Peers(None, 0, 1), kept) is kept


def test_a_rank_visits_its_keys():
    seen = []
    route = StayRoute(Peers(None, 0, 1), (HeldKeys(range(7, 9), slice(1, 3)),))
    k = torch.arange(4.0).view(1, 1, 4, 1)
    route.carry(k, -k, lambda runs, a, b: seen.append((runs, a.flatten(), b.flatten())))
    ((runs, keys, values),) = seen
    assert (runs, keys.tolist(), values.tolist()) == ((range(7, 9),), [1.0, 2.0], [-1.0, -2.0])
    with pytest.raises(at.UnsupportedError, match="no gradients"):
        route.carry_back(k, k, lambda *_: (k, k))
