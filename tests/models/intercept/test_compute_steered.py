"""Models made of attentropy.nn, or of calls of attend(), are steered as if they had been built so."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import attentropy as at
from attentropy.attention.hooks import hooks
from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.nn import (
    AdditiveAttention,
    CosineAttention,
    DecayAttention,
    EntropyInvariantAttention,
    GatedAttentionUnit,
    LearnedScale,
    LinearAttention,
    MultiheadAttention,
    RelativeBias,
    RotaryPositions,
    hierarchical,
)

X = torch.randn(2, 11, 32, generator=torch.Generator().manual_seed(1))
TABLE = torch.tensor([0.1, 0.2, 0.3, 0.4])
PLAN = at.Plan(
    model="Two",
    reference=4,
    hold="entropy",
    method="empirical",
    lengths=(4, 8),
    factors={"layers.0": ((1.0, 2.0),) * 4, "layers.1": ((1.0, 3.0), (1.0, 1.0)) * 2},
    entropy={},
    spread={},
)


class Two(nn.Module):
    def __init__(self, make, *, checkpointed=None):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(make() for _ in range(2))
        self.checkpointed = checkpointed
        for parameter in self.parameters():
            if parameter.dim() > 1:
                parameter.data *= 1.5

    def forward(self, x):
        self.seen = []
        for layer in self.layers:
            if self.checkpointed is None:
                out, stats = layer(x)
            else:
                out, stats = checkpoint(layer, x, use_reentrant=self.checkpointed)
            self.seen.append(stats)
            x = x + out
        return x


class ByHand(nn.Module):
    """A layer of a user's own, on attend()."""

    def __init__(self, **options):
        super().__init__()
        self.project, self.options = nn.Linear(32, 96), options

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        out, stats = at.attend(q, k, v, **self.options)
        return out.transpose(1, 2).flatten(2), stats


def causal(**parts):
    return lambda: MultiheadAttention(32, 4, **{"mask": at.causal, **parts})


CASES = {
    "number": ({"scale": 0.7}, causal(), causal(scale=0.7)),
    "per head": ({"scale": TABLE}, causal(), causal(scale=lambda d, n: TABLE)),
    "rule": ({"scale": at.LogLength(2.0)}, causal(), causal(scale=at.LogLength(2.0))),
    "relative": ({"scale": at.LogLengthFrom(4)}, causal(), causal(scale=at.LogLengthFrom(4))),
    "relative to its own": (
        {"scale": at.LogLengthFrom(4)},
        causal(scale=0.2),
        causal(scale=lambda d, n: 0.2 * d**0.5 * at.LogLengthFrom(4)(d, n)),
    ),
    "relative to a learned one": (
        {"scale": at.PowerLength(0.5, 4)},
        causal(scale=LearnedScale(4)),
        causal(scale=LearnedScale(4, base=at.PowerLength(0.5, 4))),
    ),
    "temperature": ({"temperature": 2.0}, causal(), causal(scale=8**-0.5 / 2)),
    "temperatures": (
        {"temperature": [1.0, 2.0, 3.0, 4.0]},
        causal(),
        causal(scale=lambda d, n: d**-0.5 / torch.arange(1.0, 5.0)),
    ),
    "temperature of a cosine": (
        {"temperature": 2.0},
        lambda: CosineAttention(32, 4, scale=3.0),
        lambda: CosineAttention(32, 4, scale=1.5),
    ),
    "temperature of an additive score": (
        {"temperature": 0.5},
        lambda: AdditiveAttention(32, 4),
        lambda: AdditiveAttention(32, 4, scale=2.0),
    ),
    "temperature of a rule": (
        {"temperature": 2.0},
        causal(scale=at.LogLength(2.0)),
        causal(scale=at.LogLength(1.0)),
    ),
    "qk norm": ({"qk_norm": True}, causal(), causal(qk_norm="rms")),
    "qk norm of a cosine": (
        {"qk_norm": True},
        lambda: CosineAttention(32, 4),
        lambda: CosineAttention(32, 4, scale=8**0.5),
    ),
    "cosine": ({"qk_norm": 3.0}, causal(), causal(score=at.Cosine(), scale=3.0)),
    "function": ({"qk_norm": lambda q, k: (2 * q, k)}, causal(), causal(scale=2 * 8**-0.5)),
    "weights": ({"weights": at.ReluSquared()}, causal(), causal(weights=at.ReluSquared())),
    "mask": (
        {"mask": at.lookback(3)},
        causal(positions=RotaryPositions()),
        causal(mask=at.causal & at.lookback(3), positions=RotaryPositions()),
    ),
    "mask that is no interval": (
        {"mask": at.strided(2)},
        causal(num_kv_heads=2),
        causal(mask=at.causal & at.strided(2), num_kv_heads=2),
    ),
    "mask and a float mask": (
        {"mask": at.causal},
        causal(mask=torch.ones(11, 11).tril(2).log()),
        causal(mask=torch.ones(11, 11).tril().log()),
    ),
    "mask, a float mask and a bias": (
        {"mask": at.causal},
        causal(mask=torch.ones(11, 11).tril(2).log(), positions=RelativeBias(4, 3)),
        causal(mask=torch.ones(11, 11).tril().log(), positions=RelativeBias(4, 3)),
    ),
    "scale and mask": (
        {"scale": at.LogLength(2.0), "mask": at.lookback(4)},
        causal(),
        causal(scale=at.LogLength(2.0), mask=at.causal & at.lookback(4)),
    ),
    "gated unit": (
        {"scale": 0.3, "weights": at.Softmax()},
        lambda: GatedAttentionUnit(32, key_dim=16),
        lambda: GatedAttentionUnit(32, key_dim=16, scale=0.3, weights=at.Softmax()),
    ),
    "attend()": ({"softcap": 0.5}, ByHand, lambda: ByHand(softcap=0.5)),
    "attend() with options": (
        {"temperature": 2.0, "mask": at.causal},
        lambda: ByHand(scale=0.8, softcap=5.0),
        lambda: ByHand(scale=0.4, softcap=5.0, mask=at.causal),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_steering_is_the_layer_built_so_and_undo_is_exact(name):
    steering, made, want = CASES[name]
    model, other = Two(made), Two(want)
    other.load_state_dict(model.state_dict(), strict=False)
    plain = model(X)
    handle = at.steer(model, **steering)
    assert not handle.applied
    steered = model(X)
    assert handle.applied
    assert not torch.allclose(steered, plain, atol=1e-3)
    torch.testing.assert_close(steered, other(X), atol=2e-5, rtol=2e-5)
    for ours, theirs in zip(model.seen, other.seen, strict=True):
        torch.testing.assert_close(ours.collision, theirs.collision, atol=2e-5, rtol=2e-5)
    steered.sum().backward()
    handle.undo()
    assert torch.equal(model(X), plain)
    assert hooks.change is None
    for module in model.modules():
        assert not any(key.startswith("_attentropy") for key in module.__dict__)
        assert not module._forward_hooks


def test_a_model_of_the_documents_follows_too():
    layer = EntropyInvariantAttention(32, 4)
    doubled = EntropyInvariantAttention(32, 4, kappa=2.0)
    doubled.load_state_dict(layer.state_dict())
    handle = at.steer(layer, scale=at.LogLength(2.0))
    torch.testing.assert_close(layer(X, X, X).out, doubled(X, X, X).out)
    handle.undo()


def test_plans_give_each_head_its_factor():
    model = Two(causal())
    handle = at.steer(model, PLAN)
    steered = model(X)
    handle.undo()
    for layer, factors in zip(model.layers, PLAN.factors.values(), strict=True):
        last = torch.tensor([f[-1] for f in factors]).view(1, -1, 1)

        def rule(d, n, last=last):
            share = ((n.log() - math.log(4)) / math.log(2)).clamp(0, 1)
            return d**-0.5 * (1 + share * (last - 1))

        layer.scale = rule
    torch.testing.assert_close(steered, model(X))


def test_layers_are_chosen_by_name():
    model, x = Two(causal()), X
    untouched = model.layers[0](X).out
    handle = at.steer(model, scale=0.1, layers=["layers.1"])
    assert torch.equal(model.layers[0](X).out, untouched)
    steered = model.layers[1](x).out
    handle.undo()
    model.layers[1].scale = 0.1
    torch.testing.assert_close(steered, model.layers[1](x).out)


def test_a_layer_that_is_left_out_is_not_steered_for_what_is_around_it():
    model = Two(causal())
    with torch.no_grad():
        plain = [s.entropy for s in (model(X), model.seen)[1]]
        handle = at.steer(
            model, temperature=9.0, layers=lambda name: not name.startswith("layers.0")
        )
        model(X)
        handle.undo()
    torch.testing.assert_close(model.seen[0].entropy, plain[0])
    assert (model.seen[1].entropy.mean() - plain[1].mean()) > 0.05


def test_changes_nest_and_are_undone_in_any_order():
    model = Two(causal())
    plain = model(X)
    hot, narrow = at.steer(model, temperature=2.0), at.steer(model, mask=at.lookback(3))
    both = Two(causal(scale=8**-0.5 / 2, mask=at.causal & at.lookback(3)))
    torch.testing.assert_close(model(X), both(X))
    hot.undo()
    torch.testing.assert_close(model(X), Two(causal(mask=at.causal & at.lookback(3)))(X))
    narrow.undo()
    assert torch.equal(model(X), plain)


def test_watching_shows_the_steered_attention_and_other_models_stay():
    model, other = Two(causal()), Two(causal())
    plain = other(X)
    handle = at.steer(model, temperature=100.0)
    with torch.no_grad(), at.watch(model) as w:
        model(X)
        assert torch.equal(other(X), plain)
    handle.undo()
    assert all(row.normalized_entropy > 0.999 for row in w.heads())


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradients_under_checkpointing_are_those_of_the_steered_model(reentrant):
    want = Two(causal(scale=0.9))
    x = X.clone().requires_grad_()
    want(x).square().sum().backward()
    grad, x.grad = x.grad, None
    model = Two(causal(), checkpointed=reentrant)
    handle = at.steer(model, scale=0.9)
    model(x).square().sum().backward()
    handle.undo()
    torch.testing.assert_close(x.grad, grad, atol=1e-4, rtol=1e-4)


def test_key_mass_is_that_of_the_steered_attention_and_is_not_recorded():
    class Masses(nn.Module):
        def forward(self, q):
            self.mass = at.key_mass(q, q)
            return at.attend(q, q, q).out

    model, q = Masses(), torch.randn(1, 2, 5, 8)
    handle = at.steer(model, scale=0.9)
    with at.watch(model) as w:
        model(q)
    handle.undo()
    torch.testing.assert_close(model.mass, at.key_mass(q, q, scale=0.9))
    assert {row.rows for row in w.heads()} == {5}


class Far(nn.Module):
    def forward(self, q, mask=None, **options):
        return hierarchical(q, q, q, 2, mask=mask, **options)


@pytest.mark.parametrize(
    ("steering", "scale"),
    [({"scale": at.LogLengthFrom(4)}, at.LogLengthFrom(4)), ({"temperature": 2.0}, 8**-0.5 / 2)],
)
def test_a_hierarchy_is_steered_as_one(steering, scale):
    model, q = Far(), torch.randn(1, 2, 32, 8)
    handle = at.steer(model, **steering)
    steered = model(q, at.causal)
    handle.undo()
    want = model(q, at.causal, scale=scale)
    torch.testing.assert_close(steered.out, want.out)
    torch.testing.assert_close(steered.stats.entropy, want.stats.entropy)


@pytest.mark.parametrize(
    ("made", "steering", "message"),
    [
        (lambda: LinearAttention(32, 4), {"temperature": 2.0}, "Kernelised weights have no logits"),
        (lambda: DecayAttention(32, 4), {"scale": 2.0}, "Decay weights have no logits and take no scale"),
        (lambda: AdditiveAttention(32, 4), {"qk_norm": True}, r"takes dot products and cosines, not .*Additive"),
        (lambda: ByHand(sink=torch.zeros(4)), {"weights": at.ReluSquared()}, "sink is supported by Softmax"),
    ],
)  # fmt: skip
def test_what_a_layer_cannot_do_is_told_and_its_own_call_answers(made, steering, message):
    model = Two(made)
    plain = model(X)
    handle = at.steer(model, **steering)
    why = rf"reached no attention call of Two.* layers.0, layers.1 \(the change cannot .*{message}"
    with pytest.warns(RuntimeWarning, match=why):
        assert torch.equal(model(X), plain)
    handle.undo()
    assert torch.equal(model(X), plain)


@pytest.mark.parametrize("steering", [{"softcap": 2.0}, {"weights": at.ReluSquared()}])
def test_what_a_hierarchy_cannot_do_is_told(steering):
    handle = at.steer(model := Far(), **steering)
    with pytest.warns(RuntimeWarning, match="hierarchical takes no .*, to which it is steered"):
        model(torch.randn(1, 2, 16, 8))
    handle.undo()


def test_arguments_of_attend_are_checked_as_ever():
    class Wrong(nn.Module):
        def forward(self, x):
            return at.attend(x, x, x)

    handle = at.steer(model := Wrong(), scale=0.5)
    with pytest.raises(ArgumentError, match=r"q must be of shape \[B,H,Q,D\]"):
        model(torch.randn(2, 3))
    with pytest.raises(ArgumentTypeError, match="q must be a tensor"):
        model("x")
    handle.undo()


@pytest.mark.parametrize("scale", [math.nan, math.inf, torch.tensor([1.0, math.nan])])
def test_scales_are_finite(scale):
    with pytest.raises(ArgumentError, match="scale must be finite"):
        at.steer(Two(causal()), scale=scale)


def test_layers_without_attention_are_told_so():
    model = Two(causal())
    handle = at.steer(model, scale=0.5, layers=lambda name: name == "")
    with pytest.warns(RuntimeWarning, match="none of `layers` calls attention itself"):
        model(X)
    handle.undo()


def test_compiled_models_follow_steering_and_undo():
    torch._dynamo.reset()
    model = Two(causal())
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        plain = compiled(X)
        handle = at.steer(model, scale=at.LogLength(2.0))
        torch.testing.assert_close(compiled(X), Two(causal(scale=at.LogLength(2.0)))(X))
        handle.undo()
        torch.testing.assert_close(compiled(X), plain)
    torch._dynamo.reset()


def test_copies_stay_steered():
    model = Two(causal())
    handle = at.steer(model, scale=at.LogLength(2.0))
    twin = copy.deepcopy(model)
    torch.testing.assert_close(twin(X), model(X))
    handle.undo()
