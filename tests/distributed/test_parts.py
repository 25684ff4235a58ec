"""A call cut into parts gives, part by part, the logits of the whole."""

import pytest
import torch

import attentropy as at
from attentropy.core.resolve import Options, resolve
from attentropy.core.visibility import Span
from attentropy.distributed.parts import RowRun, cut
from attentropy.kernels import reference
from tests.cases import Shape, masks, options

SHAPE = Shape(queries=12, keys=12, key_heads=4)
NAMES = ["plain", "log length", "scale tensor", "bias", "relative", "alibi", "softcap", "additive"]


def whole(**given):
    torch.manual_seed(3)
    return resolve(*(x.detach() for x in SHAPE.tensors()), Options(**given))


def dense(call):
    hidden = ~call.seen.dense()
    return reference.logits(call, hidden).masked_fill(hidden, -torch.inf)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("rows", "keys"), [((0, 5), (0, 7)), ((5, 12), (7, 12)), ((0, 3), (9, 12))]
)
def test_options(name, rows, keys):
    check(whole(**options(SHAPE)[name]), rows, keys)


@pytest.mark.parametrize("name", masks(SHAPE))
def test_masks(name):
    check(whole(mask=masks(SHAPE)[name]), (4, 9), (2, 8))


def check(call, rows, keys):
    run, columns = RowRun(slice(*rows), rows[0]), range(*keys)
    k, v = (x[:, :, keys[0] : keys[1]] for x in (call.k, call.v))
    shown = call.seen.limits().show(columns)
    part = cut(call, run, columns, whole=shown, k=k, v=v)
    want = dense(call)[:, :, rows[0] : rows[1], keys[0] : keys[1]]
    torch.testing.assert_close(dense(part), want)
    assert part.seen.origin is None
    visible = part.visible.expand(part.q.shape[:3])
    assert torch.equal(visible, (want > -torch.inf).sum(-1))


@pytest.mark.parametrize(
    ("rows", "keys", "want"),
    [((4, 8), (4, 8), "causal"), ((4, 8), (0, 4), "full"), ((4, 8), (2, 6), "other")],
)
def test_parts_of_a_causal_call_stay_causal_or_full(rows, keys, want):
    call = whole(mask=at.causal)
    run, columns = RowRun(slice(*rows), rows[0]), range(*keys)
    limits = call.seen.select(Span(queries=run.rows)).limits()
    k = call.k[:, :, keys[0] : keys[1]]
    part = cut(call, run, columns, whole=limits.show(columns), k=k, v=k)
    assert part.seen.shape == want
    assert run.count == 4


def test_each_part_has_noise_of_its_own_and_the_same_again():
    call = whole(dropout=0.5)
    run = RowRun(slice(0, 6), 0)

    def seed(first):
        k = call.k[:, :, first : first + 6]
        return int(cut(call, run, range(first, first + 6), whole=True, k=k, v=k).seed)

    assert seed(0) == seed(0)
    assert seed(0) != seed(6)
