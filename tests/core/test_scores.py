import pytest
import torch
import torch.nn.functional as F

import attentropy as at
from attentropy.core.scores import unit
from tests.cases import Shape


def test_cosine_is_that_of_torch():
    q, k, v = Shape(key_heads=4).tensors()
    s = 10 * F.cosine_similarity(q[:, :, :, None], k[:, :, None], dim=-1)
    torch.testing.assert_close(at.attend(q, k, v, score=at.Cosine()).out, s.softmax(-1) @ v)


def test_cosine_at_zero_norm_has_finite_gradients():
    q, k, v = (x.detach().clone().requires_grad_() for x in Shape(key_heads=4).tensors())
    with torch.no_grad():
        q[0, 0, 0] = 0
        k[0, 0, 0] = 0
    at.attend(q, k, v, score=at.Cosine(eps=1e-3)).out.sum().backward()
    assert q.grad.isfinite().all()
    assert q.grad[0, 0, 0].abs().max() <= 1e3 * 10 * v.abs().max() * 47


@pytest.mark.parametrize("size", [1e-30, 1e-10, 1.0, 1e10, 1e25, 1e37])
def test_unit_vectors_of_any_size(size):
    x = torch.randn(5, 8) * size
    want = F.normalize(x.double(), dim=-1).float() if size > 1e-4 else None
    got = unit(x, eps=1e-6)
    assert got.isfinite().all()
    if want is not None:
        torch.testing.assert_close(got, want)
    else:
        torch.testing.assert_close(got, x / 1e-6, atol=1e-12, rtol=1e-4)


def test_relative_bias_clips_at_its_reach():
    table = torch.arange(5.0)
    q = torch.zeros(1, 1, 6, 4)
    got = at.attend(q, q, q, bias=at.Relative(table), kernel="reference").stats.max_logit
    assert got[0, 0].tolist() == [4.0, 4.0, 4.0, 4.0, 3.0, 2.0]


def test_alibi_is_the_geometric_sequence_of_slopes():
    slopes = at.ALiBi().of_heads(8, device=torch.device("cpu"))
    torch.testing.assert_close(slopes, 0.5 ** torch.arange(1.0, 9.0))
    q = torch.zeros(1, 8, 5, 4)
    stats = at.attend(q, q, q, bias=at.ALiBi(), mask=at.causal).stats
    row = (-slopes[:, None] * torch.arange(5.0)).softmax(-1)
    torch.testing.assert_close(stats.collision[0, :, -1], row.square().sum(-1))


def test_softcap_comes_before_the_bias():
    q, k, v = Shape(key_heads=4).tensors()
    bias = torch.full((33, 47), 5.0).double()
    got = at.attend(q, k, v, softcap=0.5, bias=bias).stats
    assert got.max_logit.max() <= 5.5
    assert got.max_logit.min() > 4.5


BAD = {
    "eps": (lambda: at.Cosine(eps=0.0), "Cosine: eps must be positive and finite, got 0.0"),
    "table": (lambda: at.Relative(torch.ones(4)), r"an odd number of distances, got \[4\]"),
    "table kind": (lambda: at.Relative([1.0]), "Relative: table must be a tensor, got list"),
    "table dtype": (
        lambda: at.Relative(torch.ones(5) * 1j),
        "Relative: table.dtype must be that of real numbers, got torch.complex64",
    ),
    "slopes dtype": (
        lambda: at.ALiBi(torch.ones(4).bool()),
        "ALiBi: slopes.dtype must be that of real numbers, got torch.bool",
    ),
    "weight dtype": (
        lambda: at.Additive(torch.ones(3, 2) * 1j, torch.ones(3, 2), torch.ones(3)),
        "Additive: query_weight.dtype must be that of real numbers, got torch.complex64",
    ),
    "vector": (
        lambda: at.Additive(torch.ones(3, 2), torch.ones(3, 2), torch.ones(4)),
        r"Additive: query_weight must be \[hidden,D\] or \[heads,hidden,D\] with hidden = 4",
    ),
    "slopes": (
        lambda: at.attend(*Shape().tensors(), bias=at.ALiBi(torch.ones(3))),
        r"ALiBi: slopes must be of shape \[H\] = \[4\], got \[3\]",
    ),
    "heads of the table": (
        lambda: at.attend(*Shape().tensors(), bias=at.Relative(torch.ones(3, 5))),
        r"Relative: table must be of shape \[2R\+1\] or \[H,2R\+1\] with H = 4, got \[3, 5\]",
    ),
    "width": (
        lambda: at.attend(
            *Shape().tensors(), score=at.Additive(torch.ones(3, 2), torch.ones(3, 2), torch.ones(3))
        ),
        r"Additive: query_weight must be .* with D = 16, heads = 4, got \[3, 2\]",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    make, message = BAD[name]
    with pytest.raises((ValueError, TypeError), match=message):
        make()
