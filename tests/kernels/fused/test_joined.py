"""Rows that see two intervals of keys, against the dense reference."""

import pytest
import torch

import attentropy as at
from attentropy.core.masks import Extent
from attentropy.core.resolve import options_of, resolve
from attentropy.core.visibility import Visibility
from attentropy.kernels import reference
from attentropy.kernels.attended import attended
from attentropy.kernels.fused import kernel as fused
from tests.cases import Shape

SHAPES = [Shape(), Shape(batch=1, queries=2, keys=257, width=8), Shape(queries=63, keys=63)]
MASKS = {
    "window with sinks": at.causal & (at.lookback(5) | at.prefix(2)),
    "sinks first": (at.prefix(3) | at.lookback(4)) & at.causal,
    "far apart or overlapping": at.causal & (at.lookback(40) | at.prefix(9)),
    "apart": (at.lookback(3) & at.lookahead(1)) | (at.prefix(9) & ~at.prefix(4)),
    "blind rows": (at.prefix(2) & at.padding(torch.tensor([0]))) | (at.causal & at.lookback(1)),
}
needs_fused = pytest.mark.skipif(fused.library.missing is not None, reason="no compiled kernel")


def call_of(tensors, **options):
    return resolve(*tensors, options_of(options))


@needs_fused
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_two_intervals_give_what_the_reference_gives(shape, name):
    tensors = [x.detach().requires_grad_() for x in shape.tensors(torch.float32)]
    exact = [x.detach().double().requires_grad_() for x in tensors]
    more = {"mask": MASKS[name], "softcap": 3.0, "sink": torch.randn(shape.heads)}
    call, wanted_call = call_of(tensors, **more), call_of(exact, **more)
    assert call.seen.in_two() is not None
    assert fused.lacks(call) is None
    got, wanted = (
        attended(call, fused.attend(call)),
        attended(wanted_call, reference.attend(wanted_call)),
    )
    torch.testing.assert_close(got.out.double(), wanted.out, rtol=1e-5, atol=2e-6)
    for field in ("entropy", "lse", "max_logit", "collision", "varentropy", "sink_mass"):
        one, two = getattr(got.stats, field), getattr(wanted.stats, field)
        torch.testing.assert_close(one.double(), two, rtol=2e-5, atol=5e-6, msg=field)
    assert torch.equal(got.stats.argmax, wanted.stats.argmax)
    assert torch.equal(got.stats.visible, wanted.stats.visible)
    for found in (got, wanted):
        (
            found.out.square().sum() + found.stats.entropy.sum() + found.stats.varentropy.sum()
        ).backward()
    for one, two in zip(tensors, exact, strict=True):
        torch.testing.assert_close(one.grad.double(), two.grad, rtol=1e-4, atol=2e-5)


@needs_fused
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_receive_what_the_reference_says(dtype):
    tensors = [x.detach() for x in Shape().tensors(dtype)]
    call = call_of(tensors, mask=MASKS["window with sinks"], sink=torch.zeros(4))
    exact = call_of(
        [x.double() for x in tensors], mask=MASKS["window with sinks"], sink=torch.zeros(4)
    )
    got = fused.key_mass(call)
    torch.testing.assert_close(got.double(), reference.key_mass(exact), rtol=1e-4, atol=1e-5)
    out = fused.attend(call).out
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), reference.attend(exact).out.to(dtype).double(),
                               rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)  # fmt: skip


@needs_fused
def test_a_large_window_with_sinks_is_served_by_the_compiled_kernel():
    q = torch.randn(1, 2, 1500, 8)
    mask = at.causal & (at.lookback(128) | at.prefix(4))
    assert at.explain(q, q, q, mask=mask).kernel == "fused"
    assert at.explain(q, q, q, mask=mask, dropout=0.1).kernel == "streaming"
    for _ in range(2):  # the second call may have a plan
        got, stats = at.attend(q, q, q, mask=mask)
        wanted, expected = at.attend(q, q, q, mask=mask, kernel="streaming")
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(stats.entropy, expected.entropy, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MASKS)
def test_the_two_parts_have_no_key_in_common_and_show_all(name):
    extent = Extent(1, 1, 23, 31, torch.device("cpu"))
    seen = Visibility.of_mask(MASKS[name], extent)
    one, two = (part.dense() for part in seen.in_two())
    assert not (one & two).any()
    assert torch.equal(one | two, MASKS[name].dense(extent))


def test_what_is_no_union_of_two_intervals_has_no_parts():
    extent = Extent(1, 1, 8, 8, torch.device("cpu"))
    three = at.lookback(1) & at.lookahead(1) | at.prefix(1) | at.prefix(5) & ~at.prefix(4)
    for mask in (at.causal, at.causal & at.strided(2), three & at.causal, ~(three & at.causal)):
        assert Visibility.of_mask(mask, extent).in_two() is None
    window = Visibility.of_mask(MASKS["window with sinks"], extent)
    assert window.meet(at.dense(torch.ones(8, 8, dtype=torch.bool))).in_two() is None
    assert window.meet(at.strided(2)).in_two() is None
