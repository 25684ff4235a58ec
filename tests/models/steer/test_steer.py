import copy
import io
import math
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attentropy as at
from attentropy.core.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from tests.models.test_watch import CAUSAL, Model, sharp
from tests.models.zoo import build, inputs

X = torch.randn(2, 11, 32, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return sharp(Model())


class Centred(at.Cosine):
    def prepare(self, q, k):
        return super().prepare(*(x - x.mean(-1, keepdim=True) for x in (q, k)))


def by_hand(model, x, mask=CAUSAL, **options):
    """The model with attend() and these options in place of its attention."""
    for layer in model.layers:
        q, k, v = layer.project(x)
        x = x + at.attend(q, k, v, mask=mask, **options).out.transpose(1, 2).flatten(2)
    return x


@pytest.mark.parametrize(
    ("steering", "options"),
    [
        ({"scale": at.LogLengthFrom(4)}, {"scale": at.LogLengthFrom(4)}),
        ({"scale": at.StepLog(4)}, {"scale": at.StepLog(4)}),
        ({"scale": at.InfoScale(4)}, {"scale": at.InfoScale(4)}),
        (
            {"qk_norm": 3.0, "scale": at.InfoScale(4)},
            {"score": at.Cosine(), "scale": at.CosScale(3.0, growth=at.InfoScale(4))},
        ),
        ({"weights": at.Entmax()}, {"weights": at.Entmax()}),
        ({"weights": at.Sparsemax()}, {"weights": at.Sparsemax()}),
        ({"scale": at.LogLength(2.0)}, {"scale": at.LogLength(2.0)}),
        ({"scale": 0.7}, {"scale": 0.7}),
        ({"scale": torch.tensor([0.1, 0.2, 0.3, 0.4])}, {"scale": torch.tensor([0.1, 0.2, 0.3, 0.4])}),
        ({"temperature": 2.0}, {"scale": 8**-0.5 / 2}),
        ({"temperature": [1.0, 2.0, 3.0, 4.0]}, {"scale": 8**-0.5 / torch.arange(1.0, 5.0)}),
        ({"softcap": 0.5}, {"softcap": 0.5}),
        ({"qk_norm": 3.0}, {"score": at.Cosine(), "scale": 3.0}),
        ({"qk_norm": True}, {"score": at.Cosine(), "scale": 8**0.5}),
        ({"qk_norm": "rms"}, {"score": at.Cosine(), "scale": 8**0.5}),
        ({"qk_norm": "layer"}, {"score": Centred(), "scale": 8**0.5}),
        ({"qk_norm": lambda q, k: (2 * q, k)}, {"scale": 2 * 8**-0.5}),
        ({"weights": at.ReluSquared()}, {"weights": at.ReluSquared()}),
        ({"mask": at.lookback(3)}, {"mask": at.causal & at.lookback(3)}),
        ({"mask": at.strided(2)}, {"mask": at.causal & at.strided(2)}),
    ],
    ids=lambda value: ",".join(map(str, value))[:40],
)  # fmt: skip
def test_steering_is_attend_with_that_option_and_undo_is_exact(model, steering, options):
    plain = model(X, CAUSAL)
    handle = at.steer(model, **steering)
    assert not handle.applied
    steered = model(X, CAUSAL)
    assert handle.applied
    assert not torch.allclose(steered, plain, atol=1e-3)
    torch.testing.assert_close(steered, by_hand(model, X, **{"mask": at.causal, **options}))
    handle.undo()
    assert torch.equal(model(X, CAUSAL), plain)
    for module in model.modules():
        assert not any(key.startswith("_attentropy") for key in module.__dict__)
        assert not module._forward_hooks


def test_a_float_mask_and_a_padded_one_meet_the_steered_mask(model):
    full = torch.zeros(11, 11).masked_fill(~CAUSAL, -torch.inf) + torch.randn(11, 11) * 0.1
    real = CAUSAL & (torch.arange(11) < torch.tensor([11, 7])[:, None])[:, None, None]
    window = at.causal & at.lookback(3)
    handle = at.steer(model, mask=at.lookback(3))
    seen = window.dense(at.masks.Extent(2, 1, 11, 11, X.device))
    torch.testing.assert_close(
        model(X, full), by_hand(model, X, mask=full.masked_fill(~seen, -torch.inf))
    )
    torch.testing.assert_close(model(X, real), by_hand(model, X, mask=real & seen))
    handle.undo()


def test_layers_are_chosen_by_name_and_temperatures_by_layer(model):
    first = model.layers[0](X, CAUSAL)
    handle = at.steer(model, scale=0.1, layers=["layers.1"])
    torch.testing.assert_close(model.layers[0](X, CAUSAL), first)
    q, k, v = model.layers[1].project(X)
    want = at.attend(q, k, v, mask=at.causal, scale=0.1).out.transpose(1, 2).flatten(2)
    torch.testing.assert_close(model.layers[1](X, CAUSAL), want)
    handle.undo()
    handle = at.steer(model, temperature={"layers.0": [1, 2, 3, 4]}, layers=lambda n: "layers" in n)
    assert not torch.allclose(model.layers[0](X, CAUSAL), first)
    handle.undo()
    with pytest.raises(ArgumentError, match="layers must be names of modules of the model"):
        at.steer(model, scale=0.1, layers=["nowhere"])


def test_changes_add_up_and_are_undone_in_any_order(model):
    plain = model(X, CAUSAL)
    hot, capped = at.steer(model, temperature=2.0), at.steer(model, softcap=0.5)
    both = by_hand(model, X, mask=at.causal, scale=8**-0.5 / 2, softcap=0.5)
    torch.testing.assert_close(model(X, CAUSAL), both)
    hot.undo()
    torch.testing.assert_close(model(X, CAUSAL), by_hand(model, X, mask=at.causal, softcap=0.5))
    capped.undo()
    assert torch.equal(model(X, CAUSAL), plain)


def test_watching_a_steered_model_shows_the_steered_attention(model):
    with at.watch(model) as before:
        model(X, CAUSAL)
    handle = at.steer(model, temperature=100.0)
    with at.watch(model) as after:
        model(X, CAUSAL)
    assert all(row.normalized_entropy > 0.999 for row in after.heads())
    assert any(row.normalized_entropy < 0.99 for row in before.heads())
    handle.undo()


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradients_under_checkpointing_are_those_of_the_steered_model(model, reentrant):
    checked = Model(checkpointed=reentrant)
    checked.load_state_dict(model.state_dict())
    x = X.clone().requires_grad_()
    by_hand(model, x, mask=at.causal, scale=0.9).square().sum().backward()
    want, x.grad = x.grad, None
    handle = at.steer(checked, scale=0.9)
    loss = checked(x, CAUSAL).square().sum()
    loss.backward()
    torch.testing.assert_close(x.grad, want, atol=1e-4, rtol=1e-4)
    handle.undo()


def test_copies_and_pickles_of_a_steered_model_stay_steered(model):
    handle = at.steer(model, scale=at.LogLengthFrom(4))
    steered = model(X, CAUSAL)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        torch.testing.assert_close(twin(X, CAUSAL), steered)
    handle.undo()


def test_compiled_models_follow_steering_and_undo(model):
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        plain = compiled(X, CAUSAL)
        handle = at.steer(model, scale=0.9)
        torch.testing.assert_close(compiled(X, CAUSAL), by_hand(model, X, scale=0.9))
        handle.undo()
        torch.testing.assert_close(compiled(X, CAUSAL), plain)
    torch._dynamo.reset()


def test_multihead_attention_is_steered_in_eval_too():
    layer = nn.TransformerEncoderLayer(32, 4, 32, batch_first=True).eval()
    with torch.no_grad():
        plain = layer(X)
        handle = at.steer(layer, temperature=50.0)
        assert not torch.allclose(layer(X), plain, atol=1e-4)
        handle.undo()
        assert torch.equal(layer(X), plain)


@contextmanager
def softmaxes():
    """Logits of every softmax that is called as a method or as a function of torch."""
    found, plain = [], torch.nn.functional.softmax

    def softmax(x, *args, **kwargs):
        found.append(x.detach().clone())
        return plain(x, *args, **kwargs)

    torch.nn.functional.softmax = softmax
    try:
        yield found
    finally:
        torch.nn.functional.softmax = plain


class TestTransformers:
    """Steering through the attention interface."""

    @pytest.mark.parametrize("name", ["llama", "gemma2", "t5", "whisper", "bert", "gpt_oss"])
    def test_steer_and_undo(self, name):
        pytest.importorskip("transformers")
        model, batch = build(name), inputs(name)
        with torch.no_grad():
            plain = model(**batch)[0]
            handle = at.steer(model, temperature=3.0)
            with at.watch(model) as w:
                steered = model(**batch)[0]
            handle.undo()
            assert torch.equal(model(**batch)[0], plain)
            with at.watch(model) as v:
                model(**batch)
        assert model.config._attn_implementation == "eager"
        assert not torch.allclose(steered, plain, atol=1e-3)
        hot = sum(row.entropy for row in w.heads())
        assert hot > sum(row.entropy for row in v.heads())

    def test_relative_rules_multiply_the_scale_of_the_model(self):
        # Whisper scales its queries before attention, T5 does not scale at all
        for name in ("whisper", "t5", "llama"):
            model, batch = build(name), inputs(name, padded=False)
            with torch.no_grad():
                handle = at.steer(model, scale=at.LogLengthFrom(10_000))
                same = model(**batch)[0]
                handle.undo()
                torch.testing.assert_close(same, model(**batch)[0], atol=1e-4, rtol=1e-4)

    def test_absolute_scales_know_of_queries_that_are_scaled_already(self):
        model, batch = build("whisper"), inputs("whisper")
        with torch.no_grad():
            handle = at.steer(model, scale=8**-0.5)
            same = model(**batch)[0]
            handle.undo()
            torch.testing.assert_close(same, model(**batch)[0], atol=1e-5, rtol=1e-5)

    def test_models_of_one_configuration_and_saving(self, tmp_path):
        transformers = pytest.importorskip("transformers")
        config = copy.deepcopy(build("llama").config)
        first, second = (transformers.LlamaForCausalLM(config).eval() for _ in range(2))
        batch = inputs("llama", padded=False)
        plain = [model(**batch).logits for model in (first, second)]
        handles = [at.steer(model, temperature=5.0) for model in (first, second)]
        first.save_pretrained(tmp_path)
        assert "attentropy" not in (tmp_path / "config.json").read_text()
        handles[0].undo()
        torch.testing.assert_close(first(**batch).logits, plain[0], atol=1e-5, rtol=1e-5)
        assert not torch.allclose(second(**batch).logits, plain[1], atol=1e-5)
        handles[1].undo()
        for model, before in zip((first, second), plain, strict=True):
            assert torch.equal(model(**batch).logits, before)
        loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path).eval()
        torch.testing.assert_close(loaded(**batch).logits, plain[0], atol=1e-5, rtol=1e-5)

    def test_what_needs_scores_is_left_to_the_model_by_hand_with_a_reason(self):
        model = build("bloom")
        plain = model(**inputs("bloom")).logits
        handle = at.steer(model, qk_norm=True)
        why = "reached no attention call of BloomForCausalLM, .* where qk_norm finds no queries"
        with pytest.warns(RuntimeWarning, match=why):
            same = model(**inputs("bloom")).logits
        assert torch.equal(same, plain)
        with pytest.raises(UnsupportedError, match="reached no attention call of Bloom"):
            handle.require()
        handle.undo()

    @pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
    @pytest.mark.parametrize("name", ["bloom", "gptj", "deberta_v2", "mpt", "t5", "gemma2"])
    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    @torch.no_grad()
    def test_a_temperature_divides_the_whole_logit(self, name, implementation):
        if implementation == "sdpa" and name != "t5":
            pytest.skip("it attends in one way only")
        model, batch = build(name, implementation), inputs(name)
        with softmaxes() as plain:
            build(name)(**batch)
        handle = at.steer(model, temperature=[0.5, 1.0, 2.0, 3.0])
        with at.watch(model, sample=None) as w:
            model(**batch)
        handle.undo()
        first = w.heads()[:4]
        tau = torch.tensor([0.5, 1.0, 2.0, 3.0]).view(4, 1, 1).double()
        s = plain[0].double()
        p = (s / tau).masked_fill(s < s.amax(-1, keepdim=True) - 90, -torch.inf).softmax(-1)
        real = batch["attention_mask"].bool()[:, None] & ((p > 0).sum(-1) >= 2)
        entropy = torch.special.entr(p).sum(-1)
        want = (entropy * real).sum((0, 2)) / real.sum((0, 2))
        for row, value in zip(first, want.tolist(), strict=True):
            assert row.entropy == pytest.approx(value, abs=1e-4)

    @pytest.mark.parametrize("implementation", ["eager", "sdpa"])
    @torch.no_grad()
    def test_the_relative_positions_of_sam_are_divided_as_its_scores_are(self, implementation):
        import transformers

        def sam(attention):
            torch.manual_seed(0)
            config = transformers.SamVisionConfig(
                hidden_size=32, num_hidden_layers=1, num_attention_heads=4, image_size=32,
                patch_size=8, mlp_dim=32, output_channels=16, window_size=0, global_attn_indexes=[0],
                attn_implementation=attention,
            )  # fmt: skip
            model = transformers.SamVisionModel(config).eval()
            for name, x in model.named_parameters():
                if "rel_pos" in name:
                    x.normal_(generator=torch.Generator().manual_seed(len(name)))
            return model

        images, model = torch.rand(2, 3, 32, 32), sam(implementation)
        with softmaxes() as plain:
            sam("eager")(images)
        handle = at.steer(model, temperature=[0.5, 1.0, 2.0, 3.0])
        with at.watch(model, sample=None) as w:
            model(images)
        handle.undo()
        tau = torch.tensor([0.5, 1.0, 2.0, 3.0]).view(4, 1, 1).double()
        p = (plain[0].double().view(2, 4, 16, 16) / tau).softmax(-1)
        want = torch.special.entr(p).sum(-1).mean((0, 2))
        got = torch.tensor([row.entropy for row in w.heads()], dtype=torch.float64)
        torch.testing.assert_close(got, want, atol=1e-4, rtol=0)

    def test_falcon_is_steered_through_sdpa(self):
        model, batch = build("falcon", "sdpa"), inputs("falcon")
        with torch.no_grad():
            plain = model(**batch).logits
            handle = at.steer(model, temperature=5.0)
            assert not torch.allclose(model(**batch).logits, plain, atol=1e-3)
            handle.undo()
            assert torch.equal(model(**batch).logits, plain)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"scale": "big"}, ArgumentTypeError, "scale must be a scale rule, a number or a tensor"),
        ({"temperature": 0.0}, ArgumentError, "temperature must be positive"),
        ({"temperature": [1.0, math.nan]}, ArgumentError, "temperature must be positive"),
        ({"mask": CAUSAL}, ArgumentTypeError, "mask must be a Mask"),
        (
            {"weights": "relu"},
            ArgumentTypeError,
            "weights must be a value of attentropy.core.weights",
        ),
        (
            {"scale": at.LogLength},
            ArgumentTypeError,
            "scale must be a scale rule, a number or a ten",
        ),
        ({"scale": math.nan}, ArgumentError, "scale must be finite, got nan"),
        ({"qk_norm": "foo"}, ArgumentError, "qk_norm must be True, 'rms', 'layer', .* got 'foo'"),
        ({"qk_norm": -1.0}, ArgumentError, "qk_norm must be True, 'rms', 'layer', .* got -1.0"),
        (
            {"softcap": -1.0},
            ArgumentError,
            "softcap must be positive and finite, or None, got -1.0",
        ),
        ({"plan": at.LogLengthFrom(4)}, ArgumentTypeError, r"plan must be a Plan of calibrate\(\)"),
    ],
)
def test_bad_arguments(model, options, error, message):
    before = F.scaled_dot_product_attention
    with pytest.raises(error, match=message):
        at.steer(model, **options)
    assert F.scaled_dot_product_attention is before
    model(X, CAUSAL)


def test_a_model_without_modules_is_refused():
    with pytest.raises(
        ArgumentError, match="model must be one that has modules of its own, .* got L"
    ):
        at.steer(nn.Linear(2, 2), scale=1.0)


@pytest.mark.parametrize("weights", [at.Sigmoid(), at.Softpick()])
def test_weights_that_a_model_must_be_trained_with_are_refused(model, weights):
    with pytest.raises(UnsupportedError, match="their rows do not sum to 1, and a model"):
        at.steer(model, weights=weights)


@pytest.mark.parametrize("argument", ["weights", "scale"])
@pytest.mark.parametrize("layer", [at.nn.GatedAttention(8, 2), at.nn.DifferentialAttention])
def test_layers_that_must_be_trained_are_refused(model, argument, layer):
    with pytest.raises(
        UnsupportedError, match=r"does not take \w+Attention: it is a layer whose own"
    ):
        at.steer(model, **{argument: layer})


def test_cos_scale_is_refused_and_the_message_says_what_to_call(model):
    with pytest.raises(UnsupportedError, match=r"steer\(model, qk_norm=16\) makes cosines"):
        at.steer(model, scale=at.CosScale(16.0))
    with pytest.raises(UnsupportedError, match=r"qk_norm=2, scale=InfoScale\(reference=4\)\)"):
        at.steer(model, scale=at.CosScale(2.0, growth=at.InfoScale(4)))
