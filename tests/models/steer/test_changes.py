"""What a change makes of queries, keys and options, by numbers worked out by hand."""

import math

import pytest
import torch
from torch import nn

import attentropy as at
from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.core.masks import Extent
from attentropy.core.resolve import Options, resolve
from attentropy.core.visibility import Visibility
from attentropy.models.steer.changes import Change, Planned, check_norm

Q, K = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8)
MODULE = nn.Identity()
EXTENT = Extent(2, 4, 5, 5, Q.device)


def scale(change, options, module=MODULE):
    """The scale of every row, [B,H,Q], of the call that comes of it."""
    q, k, options = change(module, Q, K, options)
    return resolve(q, k, k, options).scale.expand(2, 4, 5)


def test_a_temperature_of_one_leaves_a_scale_of_doubles_as_it_is():
    change = Change(temperature=torch.tensor(1.0))
    q, k, options = change(MODULE, Q.double(), K.double(), Options(scale=8**-0.5))
    assert float(resolve(q, k, k, options).scale) == 8**-0.5


def test_factors_of_a_plan_are_linear_in_log_n():
    rule = Planned((4, 16), ((1.0, 3.0), (2.0, 2.0)))
    visible = torch.tensor([1, 4, 8, 16, 99]).view(1, 1, -1)
    got = rule(8, visible)
    assert got.shape == (1, 2, 5)
    torch.testing.assert_close(got[0, 0], torch.tensor([1.0, 1.0, 2.0, 3.0, 3.0]))
    torch.testing.assert_close(got[0, 1], torch.full((5,), 2.0))
    one = Planned((4,), ((1.5,), (0.5,)))
    assert one(8, visible)[0, :, 0].tolist() == [1.5, 0.5]


@pytest.mark.parametrize(
    ("rule", "want"),
    [
        (0.3, lambda n: 0.3),
        (at.LogLength(2.0), lambda n: 2.0 * math.log(n) / 8),
        (at.LogLengthFrom(3), lambda n: 0.7 * max(1.0, math.log(n) / math.log(3))),
        (at.PowerLength(0.5, 2), lambda n: 0.7 * (n / 2) ** 0.5),
        (Planned((2, 4), ((1.0, 2.0),) * 4), lambda n: 0.7 * min(2.0, max(1.0, math.log2(n)))),
    ],
)
def test_rules_replace_the_scale_or_multiply_it(rule, want):
    options = Options(mask=at.causal, scale=0.7)
    got = scale(Change(scale=rule), options)
    expected = torch.tensor([want(n) for n in range(1, 6)])
    torch.testing.assert_close(got, expected.expand(2, 4, 5))


def test_temperature_divides_per_head():
    tau = torch.tensor([1.0, 2.0, 4.0, 8.0])
    got = scale(Change(temperature=tau), Options(scale=0.8))
    torch.testing.assert_close(got[0, :, 0], 0.8 / tau)
    got = scale(Change(temperature=torch.tensor(2.0)), Options())
    torch.testing.assert_close(got, torch.full((2, 4, 5), 8**-0.5 / 2))


def test_queries_that_are_scaled_already_are_known_by_their_module():
    module = nn.Identity()
    module.scaling = 0.25
    torch.testing.assert_close(
        scale(Change(scale=0.5), Options(scale=1.0), module), torch.full((2, 4, 5), 2.0)
    )


@pytest.mark.parametrize("kind", [True, "rms", "layer", 3.0])
def test_norms(kind):
    q, k, options = Change(qk_norm=kind)(MODULE, Q, K, Options(scale=0.9))
    plain = Q - Q.mean(-1, keepdim=True) if kind == "layer" else Q
    unit = plain / plain.norm(dim=-1, keepdim=True)
    want = unit if kind == 3.0 else unit * 8**0.5
    torch.testing.assert_close(q, want, atol=1e-4, rtol=1e-4)
    assert options.scale == pytest.approx(3.0 if kind == 3.0 else 8**-0.5)
    assert k.shape == K.shape


def test_a_mask_hides_more_whatever_form_the_model_has():
    want = (at.causal & at.lookback(2)).dense(EXTENT)
    added = torch.zeros(5, 5).masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf)
    seen = Visibility.of_mask(at.causal, EXTENT)
    for mask in (at.causal, seen, added, torch.ones(5, 5).tril().bool()):
        _, _, options = Change(mask=at.lookback(2))(MODULE, Q, K, Options(mask=mask))
        assert torch.equal(resolve(Q, K, K, options).seen.dense(), want)


def test_other_options_take_the_place_of_those_of_the_call():
    change = Change(softcap=2.0, weights=at.ReluSquared())
    _, _, options = change(MODULE, Q, K, Options(softcap=9.0, dropout=0.1))
    assert (options.softcap, options.dropout) == (2.0, 0.1)
    assert isinstance(options.weights, at.ReluSquared)


def test_what_became_of_a_change_is_noted_for_its_module():
    base = Change(softcap=1.0)
    one, two = base.of("a"), base.of("b")
    one.reach()
    two.leave("by hand")
    assert (one.touch.name, one.touch.applied, one.touch.left) == ("a", True, "")
    assert (two.touch.name, two.touch.applied, two.touch.left) == ("b", False, "by hand")
    assert not Change().of("c").touch.wanted


@pytest.mark.parametrize("norm", ["foo", -1.0, 0.0, math.inf, float, [1.0]])
def test_norms_that_are_none_are_refused(norm):
    with pytest.raises(ArgumentError, match="qk_norm must be True, 'rms', 'layer', a positive"):
        check_norm(norm)


def test_a_score_that_is_no_dot_product_is_not_normed():
    score = at.Additive(torch.randn(3, 8), torch.randn(3, 8), torch.randn(3))
    with pytest.raises(UnsupportedError, match="takes dot products and cosines"):
        Change(qk_norm=True)(MODULE, Q, K, Options(score=score))
