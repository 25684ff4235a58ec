"""From arguments to a call: what is refused, and in which words; what a call then holds."""

import pytest
import torch
import torch.nn.functional as F

import attentropy as at
from attentropy.core.resolve import Options, Share, options_of, resolve
from tests.cases import Shape, masks

SHAPE = Shape()


def resolved(q, k, v, **options):
    return resolve(q, k, v, options_of(options))


def qkv(**changes):
    made = {
        "q": torch.randn(2, 4, 5, 8),
        "k": torch.randn(2, 2, 7, 8),
        "v": torch.randn(2, 2, 7, 3),
    }
    return {**made, **changes}


BAD = {
    "three dimensions": (qkv(q=torch.ones(4, 5, 8)), r"q must be of shape \[B,H,Q,D\], got \[4, 5, 8\]"),
    "no tensor": (qkv(k=[1.0]), "k must be a tensor, got list"),
    "integers": (qkv(q=torch.ones(2, 4, 5, 8).int()), "q.dtype must be of dtype float16"),
    "mixed dtypes": (qkv(v=torch.randn(2, 2, 7, 3).double()), r"v.dtype must be that of q, torch.float32"),
    "mixed devices": (qkv(k=torch.randn(2, 2, 7, 8, device="meta")), "k.device must be that of q, cpu, got meta"),
    "batch": (qkv(k=torch.randn(3, 2, 7, 8)), "the batch size of k must be 2, as in q, got 3"),
    "width": (qkv(k=torch.randn(2, 2, 7, 9)), "the width of k must be 8, as in q, got 9"),
    "heads": (
        qkv(k=torch.randn(2, 3, 7, 8), v=torch.randn(2, 3, 7, 3)),
        "the number of heads of k must be a divisor of the number of query heads 4, got 3",
    ),
    "heads of v": (qkv(v=torch.randn(2, 4, 7, 3)), "the number of heads of v must be 2, as in k, got 4"),
    "keys of v": (qkv(v=torch.randn(2, 2, 6, 3)), "the number of keys of v must be 7, as in k, got 6"),
    "mask shape": (qkv(mask=torch.ones(5, 6).bool()), r"mask must be broadcastable to \[B,H,Q,K\] = \[2, 4, 5, 7\], got \[1, 1, 5, 6\]"),
    "mask dtype": (qkv(mask=torch.ones(5, 7).int()), "mask must be a Mask, or a bool or float tensor"),
    "mask kind": (qkv(mask="causal"), "mask must be a Mask, a tensor or a function"),
    "scale": (qkv(scale=float("nan")), "scale must be finite, got nan"),
    "scale kind": (qkv(scale="log"), "scale must be a scale rule, a number or a tensor, got 'log'"),
    "scale shape": (qkv(scale=torch.ones(3)), r"scale must be of shape \[H\] or broadcastable to \[B,H,Q\]"),
    "score": (qkv(score="dot"), r"score must be Dot\(\), Cosine\(\) or Additive\(...\), got 'dot'"),
    "softcap": (qkv(softcap=0.0), "softcap must be positive and finite, or None, got 0.0"),
    "sink": (qkv(sink=torch.ones(3)), r"sink must be a tensor of shape \[H\] = \[4\], got \[3\]"),
    "sink dtype": (qkv(sink=torch.ones(4) * 1j), "sink.dtype must be that of real numbers, got torch.complex64"),
    "feature of no tensor": (qkv(weights=at.Kernelised(lambda x: 3)), "Kernelised: feature must be a map to tensors, got 3"),
    "scale dtype": (qkv(scale=torch.ones(4) * 1j), "scale.dtype must be that of real numbers, got torch.complex64"),
    "scale of bools": (qkv(scale=torch.ones(4).bool()), "scale.dtype must be that of real numbers, got torch.bool"),
    "mask dimensions": (qkv(mask=torch.ones(1, 1, 1, 5, 7).bool()), r"mask must be of at most 4 dimensions, got \[1, 1, 1, 5, 7\]"),
    "dropout": (qkv(dropout=1.0), r"dropout must be a number in \[0, 1\), got 1.0"),
    "dropout below": (qkv(dropout=-0.1), r"dropout must be a number in \[0, 1\), got -0.1"),
    "bias": (qkv(bias=torch.ones(5, 7).int()), "bias.dtype must be floating point"),
    "bias kind": (qkv(bias="alibi"), "bias must be a tensor, Relative or ALiBi, got 'alibi'"),
    "bias shape": (qkv(bias=torch.ones(3, 5, 7)), "bias must be broadcastable to"),
    "layout": (qkv(q=torch.randn(2, 4, 5, 8).to_sparse()), "q.layout must be that of a dense tensor, got torch.sparse_coo"),
    "scale class": (qkv(scale=at.InverseSqrt), "scale must be a scale rule, a number or a tensor, got <class"),
    "scale of a rule": (qkv(scale=lambda d, n: None), "scale must be a rule that gives a number or a tensor, got None"),
    "scale of a rule, nan": (qkv(scale=lambda d, n: float("nan")), "scale must be finite, got nan"),
    "score class": (qkv(score=at.Dot), r"score must be Dot\(\), Cosine\(\) or Additive\(...\), got <class"),
    "softcap kind": (qkv(softcap=True), "softcap must be positive and finite, or None, got True"),
    "device of scale": (qkv(scale=torch.ones(4, device="meta")), "scale.device must be that of q, cpu, got meta"),
    "device of sink": (qkv(sink=torch.ones(4, device="meta")), "sink.device must be that of q, cpu, got meta"),
    "device of slopes": (qkv(bias=at.ALiBi(torch.ones(4, device="meta"))), "ALiBi: slopes.device must be that of q, cpu, got meta"),
    "device of table": (qkv(bias=at.Relative(torch.ones(5, device="meta"))), "Relative: table.device must be that of q, cpu, got meta"),
    "device of weight": (qkv(score=at.Additive(torch.ones(3, 8, device="meta"), torch.ones(3, 8), torch.ones(3))), "Additive: query_weight.device must be that of q, cpu"),
    "device of vector": (qkv(score=at.Additive(torch.ones(3, 8), torch.ones(3, 8), torch.ones(3, device="meta"))), "Additive: vector.device must be that of q, cpu"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    given, message = BAD[name]
    with pytest.raises((ValueError, TypeError), match=message):
        resolved(**given)


def test_inputs_of_the_module_under_autocast():
    q, k, v = (torch.randn(1, 2, 8, 16) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        out, stats = at.attend(q, k, v)
        assert out.dtype == F.scaled_dot_product_attention(q, k, v).dtype == torch.bfloat16
    assert stats.entropy.dtype == torch.float32


def test_mixed_precisions_under_autocast():
    q, k, v = (torch.randn(1, 2, 8, 16) for _ in range(3))
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = at.attend(q, k, v.bfloat16())
        want, _ = at.attend(q, k, v)
    assert torch.equal(out, want)
    with pytest.raises(TypeError, match="v.dtype must be that of q"):
        at.attend(q, k, v.bfloat16())


@pytest.mark.parametrize("name", masks(SHAPE))
def test_visible_is_int64_whatever_the_mask(name):
    q, k, v = SHAPE.tensors()
    assert at.attend(q, k, v, mask=masks(SHAPE)[name]).stats.visible.dtype == torch.int64
    assert at.attend(q, k, v, mask=at.lookback(3)).stats.visible.dtype == torch.int64


def test_options_are_those_of_attend():
    assert options_of({"softcap": 2.0}) == Options(softcap=2.0)
    with pytest.raises(ValueError, match="option must be one of .*'weights'.*, got 'causal'"):
        options_of({"causal": True})


def test_a_call_holds_what_was_asked_for():
    q, k, v = SHAPE.tensors()
    table, slopes = torch.randn(4, 9), torch.rand(4)
    call = resolved(q, k, v, bias=at.Relative(table), softcap=3, sink=torch.zeros(4))
    assert torch.equal(call.relative, table)
    assert call.softcap == 3.0
    assert call.sink.shape == (4,)
    assert torch.equal(resolved(q, k, v, bias=at.ALiBi(slopes)).slopes, slopes)
    assert call.scale.item() == pytest.approx(16**-0.5)
    assert call.seed is None
    assert resolved(q, k, v, dropout=0.1).seed.dtype == torch.int64


def test_float_masks_and_biases_become_one_table():
    q, k, v = SHAPE.tensors()
    added, bias = torch.randn(33, 47), torch.randn(1, 4, 1, 47)
    call = resolved(q, k, v, mask=at.causal & at.masks.as_mask(added), bias=bias)
    torch.testing.assert_close(call.bias, added + bias)
    assert call.seen.hi is not None
    assert not call.seen.added.requires_grad


def test_float_masks_beside_a_relative_bias():
    q, k, v = SHAPE.tensors()
    added = torch.randn(33, 47).masked_fill(torch.rand(33, 47) > 0.7, -torch.inf)
    table = torch.randn(4, 9, dtype=torch.float64)
    distance = torch.arange(47) - (torch.arange(33)[:, None] + 14)
    got = at.attend(q, k, v, mask=added, bias=at.Relative(table))
    want = at.attend(q, k, v, bias=table[:, distance.clamp(-4, 4) + 4] + added, kernel="reference")
    torch.testing.assert_close(got.out, want.out)
    assert torch.equal(got.stats.visible, want.stats.visible)


@pytest.mark.parametrize("mask", ["tensor", "Mask"])
def test_weights_without_logits_take_no_float_mask(mask):
    q, k, v = SHAPE.tensors()
    added = torch.zeros(33, 47)
    given = added if mask == "tensor" else at.causal & at.masks.as_mask(added)
    with pytest.raises(
        at.UnsupportedError, match="Kernelised weights have no logits and take no float mask"
    ):
        resolved(q, k, v, mask=given, weights=at.Kernelised())


def test_a_share_of_a_longer_sequence_sees_the_whole():
    q, k, v = (torch.randn(1, 1, 4, 8) for _ in range(3))
    share = Share(8, 8, (range(1, 3), range(5, 7)))
    call = resolve(
        q, k, v, Options(mask=at.causal, bias=torch.arange(64.0).view(8, 8)), share=share
    )
    assert call.visible.flatten().tolist() == [2, 3, 6, 7]
    assert call.bias[0, 0, :, 0].tolist() == [8.0, 16.0, 40.0, 48.0]
    assert call.extent.keys == 8


class TestPlainCalls:
    """Plain calls are resolved once for each shape; a later one must not tell the difference."""

    def test_the_second_is_like_the_first(self):
        for given in ({}, {"mask": at.causal}, {"scale": 0.25}):
            q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 3)
            first, second = (resolve(q, k, v, Options(**given)) for _ in range(2))
            assert torch.equal(first.scale, second.scale)
            assert torch.equal(first.visible, second.visible)
            assert second.q is q
            assert second.seen.shape == first.seen.shape
            assert (
                resolve(q.double(), k.double(), v.double(), Options()).scale.dtype == torch.double
            )

    def test_what_is_written_to_a_count_is_not_seen_again(self):
        q = torch.randn(1, 1, 3, 4)
        for _ in range(3):
            stats = at.attend(q, q, q, mask=at.causal).stats
            assert stats.visible.tolist() == [[[1, 2, 3]]]
            stats.visible.zero_()

    def test_bad_tensors_are_refused_however_often(self):
        q, k = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 3, 5)
        for _ in range(2):
            with pytest.raises(ValueError, match="the width of k"):
                resolve(q, k, k, Options())

    def test_after_inference_mode_gradients_flow(self):
        with torch.inference_mode():
            q = torch.randn(1, 1, 13, 4)
            at.attend(q, q, q, mask=at.causal)
        q = torch.randn(1, 1, 13, 4, requires_grad=True)
        at.attend(q, q, q, mask=at.causal).out.sum().backward()
        assert q.grad is not None

    def test_autocast_is_asked_every_time(self):
        q = torch.randn(1, 1, 11, 4)
        assert resolve(q, q, q, Options()).q.dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert resolve(q, q, q, Options()).q.dtype == torch.bfloat16
        assert resolve(q, q, q, Options()).q.dtype == torch.float32
