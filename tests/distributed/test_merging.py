"""Rows of parts become those of the whole, and what parts add has the gradients of the whole."""

import pytest
import torch

import attentropy as at
from attentropy.core.call import Rows
from attentropy.core.resolve import Options, resolve
from attentropy.distributed.merging import StateMerging, SumMerging
from attentropy.kernels import reference

FIELDS = ("out", "entropy", "lse", "max_logit", "argmax", "collision", "mass", "varentropy")


def tensors():
    return [torch.randn(1, 2, n, d, dtype=torch.float64) for n, d in ((4, 3), (9, 3), (9, 2))]


def parts(q, k, v, weights, cuts=((0, 4), (4, 5), (5, 9)), **given):
    for a, b in cuts:
        call = resolve(q, k[:, :, a:b], v[:, :, a:b], Options(weights=weights, **given))
        yield a, call, reference.attend(call)


def kept_of(merging, q, k, v, weights, **given):
    like = torch.zeros(1, dtype=torch.float64)
    kept = merging.empty((1, 2, 4), v.shape[-1], like=like)
    for first, call, rows in parts(q, k, v, weights, **given):
        kept = merging.add(kept, call, rows, first=first)
    return kept


CASES = {
    "softmax": (StateMerging(), at.Softmax(), at.Softmax()),
    "linear": (SumMerging(at.Linear()), at.Linear(), at.Linear()),
    "l1": (SumMerging(at.L1()), at.Linear(), at.L1()),
    "l2": (SumMerging(at.L2()), at.Linear(), at.L2()),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("order", [1, -1])
def test_parts_in_any_order_are_the_whole(name, order):
    merging, of_parts, weights = CASES[name]
    q, k, v = tensors()
    cuts = ((0, 4), (4, 5), (5, 9))[::order]
    kept = kept_of(merging, q, k, v, of_parts, cuts=cuts)
    call = resolve(q, k, v, Options(weights=weights))
    got, want = merging.rows(call, kept), reference.attend(call)
    for field in FIELDS:
        x, y = getattr(got, field), getattr(want, field)
        assert (x is None) == (y is None), field
        if x is not None:
            torch.testing.assert_close(x, y, msg=field)


@pytest.mark.parametrize("name", ["softmax", "linear"])
def test_what_parts_add_sums_to_what_is_kept(name):
    merging, of_parts, _ = CASES[name]
    q, k, v = tensors()
    kept = kept_of(merging, q, k, v, of_parts)
    added = [merging.added(kept, call, rows) for _, call, rows in parts(q, k, v, of_parts)]
    for total, pieces in zip(kept[: merging.sums], zip(*added, strict=True), strict=True):
        torch.testing.assert_close(sum(pieces), total)


@pytest.mark.parametrize("name", ["softmax", "linear"])
def test_gradients_of_parts_are_those_of_the_whole(name):
    merging, of_parts, weights = CASES[name]
    q, k, v = (x.requires_grad_() for x in tensors())
    call = resolve(q, k, v, Options(weights=weights))

    def loss(rows):
        flowing = (rows.out, rows.collision, rows.entropy, rows.lse, rows.mass, rows.varentropy)
        return sum(
            (x * torch.linspace(-1, 2, x.numel()).view_as(x)).sum()
            for x in flowing
            if x is not None
        )

    want = torch.autograd.grad(loss(reference.attend(call)), (q, k, v))
    with torch.no_grad():
        kept = kept_of(merging, q, k, v, of_parts)
    sums = [x.detach().requires_grad_() for x in kept[: merging.sums]]
    whole = merging.rows(call, (*sums, *kept[merging.sums :]))
    flowing = torch.autograd.grad(loss(whole), sums)
    added = [merging.added(kept, part, rows) for _, part, rows in parts(q, k, v, of_parts)]
    total = sum((x * g).sum() for piece in added for x, g in zip(piece, flowing, strict=True))
    got = torch.autograd.grad(total, (q, k, v))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_rows_that_see_nothing():
    merging, q, k, v = StateMerging(), *tensors()
    kept = kept_of(merging, q, k, v, at.Softmax(), mask=~at.full)
    rows = merging.rows(resolve(q, k, v, Options(mask=~at.full)), kept)
    assert not rows.out.any()
    assert not rows.entropy.any()
    assert rows.lse.isneginf().all()
    assert (rows.argmax == -1).all()
    assert isinstance(rows, Rows)


def test_outputs_have_the_dtype_of_values_and_statistics_are_wide():
    q, k, v = (x.bfloat16() for x in tensors())
    call = resolve(q, k, v, Options())
    merging = StateMerging()
    kept = merging.empty((1, 2, 4), 2, like=torch.zeros(1))
    kept = merging.add(kept, call, reference.attend(call), first=0)
    rows = merging.rows(call, kept)
    assert rows.out.dtype == torch.bfloat16
    assert rows.entropy.dtype == torch.float32
