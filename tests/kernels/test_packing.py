"""A call as arguments of an operator, and back."""

import pytest
import torch

import attentropy as at
from attentropy.core.call import Call
from attentropy.core.resolve import Options, resolve
from attentropy.kernels import reference
from attentropy.kernels.packing import INPUTS, Arguments, decode, encode, pack, schema, unpack
from tests.cases import Shape, masks, options

SHAPE = Shape(batch=1, queries=9, keys=11)
WEIGHTS = [
    at.Softmax(), at.Gumbel(0.7), at.Hard(), at.ReluSquared(), at.Linear(), at.L1(),
    at.L2(at.ReluSquared()), at.Kernelised("elu"), at.Decay(0.25),
]  # fmt: skip


def test_inputs_with_gradients_come_first():
    assert Arguments._fields[: len(INPUTS)] == INPUTS
    assert set(INPUTS) <= set(Call._fields)


def test_the_schema_is_one_that_torch_reads():
    parsed = torch._C.parse_schema(f"attentropy::x({schema()}) -> Tensor")
    assert [one.name for one in parsed.arguments] == list(Arguments._fields)
    kinds = {one.name: str(one.type) for one in parsed.arguments}
    assert (kinds["q"], kinds["bias"]) == ("Tensor", "Optional[Tensor]")
    assert (kinds["softcap"], kinds["weights"]) == ("Optional[float]", "str")


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_weights_survive_as_text(weights):
    again = decode(encode(weights))
    assert type(again) is type(weights)
    assert again.probabilities == weights.probabilities
    for name in ("tau", "of", "rate"):
        assert getattr(again, name, None) == getattr(weights, name, None)


def test_rates_of_a_tensor_are_no_text():
    with pytest.raises(at.UnsupportedError, match="torch.compile of Decay with a tensor of rates"):
        encode(at.Decay(torch.tensor([0.5])))


@pytest.mark.parametrize("name", ["plain", "bias", "relative", "alibi", "softcap", "additive"])
def test_options_survive(name):
    call = resolve(*(x.detach() for x in SHAPE.tensors()), Options(**options(SHAPE)[name]))
    check(call)


@pytest.mark.parametrize("name", masks(SHAPE))
def test_masks_survive_as_bounds_and_tables(name):
    tensors = (x.detach() for x in SHAPE.tensors())
    call = resolve(*tensors, Options(mask=masks(SHAPE)[name]))
    packed = pack(call)
    assert unpack(packed).seen.predicate is None
    check(call)


def check(call):
    again = unpack(pack(call))
    for name in (*INPUTS, "slopes", "softcap", "dropout", "seed"):
        assert getattr(again, name) is getattr(call, name), name
    assert torch.equal(again.seen.dense(), call.seen.dense())
    assert torch.equal(again.visible, call.visible)
    got, want = reference.attend(again), reference.attend(call)
    torch.testing.assert_close(got.out, want.out)
