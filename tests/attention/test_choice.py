"""Which kernel serves a call, what is said of the others, and what none of them serves."""

import pytest
import torch
from torch.autograd import forward_ad

import attentropy as at
from attentropy.attention.choice import KERNELS, check_name, choose
from attentropy.core.resolve import SMALL_MASK, Options, resolve
from attentropy.core.visibility import Visibility
from tests.cases import Shape

SHAPE = Shape()


def resolved(**given):
    return resolve(*SHAPE.tensors(torch.float32), Options(**given))


def test_explain_says_which_and_why():
    q, k, v = SHAPE.tensors()
    found = at.explain(q, k, v, dropout=0.1)
    assert found.kernel in found.lacking
    assert found.lacking["streaming"] is None
    assert "linear: lacks Softmax weights" in str(found)


def test_kernels_are_known_by_their_own_names():
    assert list(KERNELS) == ["linear", "triton", "fused", "streaming", "reference"]
    assert all(kernel.name == name for name, kernel in KERNELS.items())


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_asked_for_by_name_is_never_replaced(name):
    call = resolved(weights=at.Kernelised() if name == "linear" else at.Softmax())
    reason = KERNELS[name].lacks(call)
    if reason is None:
        assert choose(call, name)[1] is KERNELS[name]
    else:
        with pytest.raises(at.UnsupportedError, match=f"kernel='{name}' does not support"):
            choose(call, name)


def test_the_refusal_names_kernels_that_serve():
    with pytest.raises(
        at.UnsupportedError, match=r"serve this call: \[.*'streaming', 'reference'\]"
    ):
        choose(resolved(weights=at.Gumbel()), "fused")


def test_names():
    for name in ("auto", *KERNELS):
        check_name(name)
    with pytest.raises(ValueError, match="kernel must be 'auto' or one of .*, got 'flash'"):
        check_name("flash")
    with pytest.raises(ValueError, match="kernel must be"):
        choose(resolved(), "flash")


def test_small_predicates_become_tables_and_large_ones_do_not():
    call, _ = choose(resolved(mask=at.strided(3)), "auto")
    assert call.seen.predicate is None
    assert call.seen.table.shape == (2, 4, 33, 47)
    assert choose(resolved(mask=at.strided(3)), "streaming")[0].seen.predicate is not None
    large = resolved(mask=at.strided(3))
    extent = large.extent._replace(keys=SMALL_MASK)
    large = large._replace(seen=Visibility.of_mask(at.strided(3), extent))
    assert choose(large, "auto")[0].seen.predicate is not None


def test_explain_refuses_what_attend_does_not_have():
    q, k, v = SHAPE.tensors()
    with pytest.raises(ValueError, match="option must be one of .*'weights'.*, got 'causal'"):
        at.explain(q, k, v, causal=True)


def test_the_explanation_as_text():
    q, k, v = SHAPE.tensors()
    lines = str(at.explain(q, k, v)).splitlines()
    assert lines[0] == "streaming serves this call."
    assert "  reference: could serve it too" in lines


def test_vmap_is_refused_with_a_way_out():
    q = torch.randn(3, 1, 2, 4, 8)
    with pytest.raises(at.UnsupportedError, match=r"torch.func transforms .* batch dimension"):
        torch.func.vmap(lambda x: at.attend(x, x, x, kernel="streaming").out)(q)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
# torch 2.15 warns of itself when it loads the formulas of forward mode
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")
@pytest.mark.parametrize("kernel", ["auto", "streaming"])
def test_forward_mode_derivatives_are_refused_not_lost(kernel):
    q, tangent = torch.randn(1, 1, 4, 8), torch.randn(1, 1, 4, 8)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, tangent)
        with pytest.raises(at.UnsupportedError, match="forward-mode .* kernel='reference'"):
            at.attend(q, dual, q, kernel=kernel)
        out = at.attend(q, dual, q, kernel="reference").out
        assert forward_ad.unpack_dual(out).tangent.abs().max() > 0
        at.attend(q, q, q, kernel=kernel)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:FutureWarning")
@pytest.mark.parametrize("kernel", ["auto", "streaming"])
@pytest.mark.parametrize(
    ("option", "shape", "made"),
    [
        ("bias", (1, 1, 4, 4), None),
        ("mask", (4, 4), None),
        ("bias", (5,), at.Relative),
        ("bias", (1,), at.ALiBi),
    ],
)
def test_tangents_of_what_is_added_are_refused_not_lost(kernel, option, shape, made):
    q, x = torch.randn(1, 1, 4, 8), torch.randn(shape)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.randn(shape))
        given = {option: dual if made is None else made(dual)}
        with pytest.raises(at.UnsupportedError, match="forward-mode .* kernel='reference'"):
            at.attend(q, q, q, kernel=kernel, **given)
        out = at.attend(q, q, q, kernel="reference", **given).out
        assert forward_ad.unpack_dual(out).tangent.abs().max() > 0


def test_explain_names_the_kernel_that_serves_a_small_predicate():
    q = torch.randn(1, 1, 4, 8)
    found = at.explain(q, q, q, mask=at.strided(3))
    assert found.kernel == choose(resolve(q, q, q, Options(mask=at.strided(3))), "auto")[1].name
    assert found.lacking[found.kernel] is None
