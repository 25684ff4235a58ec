import warnings

import msgspec
import pytest
import torch
import transformers

import attentropy as at
from attentropy.core.errors import ArgumentError
from attentropy.lab.embedded import load_embedded, sample_bytes
from attentropy.models.losses.paired import paired, stretches
from attentropy.models.losses.tokens import token_losses, truncated_losses
from attentropy.models.steer.changes import Planned
from tests.models.zoo.chosen import ROPE_HEAD

LENGTHS = [16, 64, 128]


def llama(**options):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**ROPE_HEAD, "max_position_embeddings": 256, **options})
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(std=0.3)
    return model


@pytest.fixture(scope="module")
def model():
    return llama()


@pytest.fixture(scope="module")
def batch():
    torch.manual_seed(1)
    return {"input_ids": torch.randint(3, 61, (4, 128))}


@pytest.fixture(scope="module")
def plan(model, batch):
    return at.calibrate(model, [batch], LENGTHS)


def drift(plan, which):
    """How far the entropy strays from that of the first length."""
    effects = plan.effects
    home = effects[0].entropy_before
    return max(abs(getattr(effect, which) - home) for effect in effects[1:])


def test_the_steered_model_holds_its_entropy(plan):
    assert drift(plan, "entropy_before") > 0.8  # log 8 = 2.08 is full blurring
    assert drift(plan, "entropy_after") < 0.25 * drift(plan, "entropy_before")
    assert plan.effects[0].entropy_after == pytest.approx(plan.effects[0].entropy_before, abs=1e-5)
    assert all(effect.perplexity_before > 1 for effect in plan.effects)
    assert plan.table().row_count == 3


def test_the_model_is_left_as_it_was(model, plan, batch):
    assert model.config._attn_implementation == "sdpa"
    handle = at.steer(model, plan)
    steered = model(**batch).logits
    handle.undo()
    assert not torch.allclose(steered, model(**batch).logits, atol=1e-3)


def test_short_inputs_are_not_changed_by_the_plan(model, plan, batch):
    short = batch["input_ids"][:, :14]
    plain = model(short).logits
    handle = at.steer(model, plan)
    torch.testing.assert_close(model(short).logits, plain, atol=1e-5, rtol=1e-5)
    handle.undo()


def test_the_gaussian_theory_finds_nearly_the_same_factors(model, batch, plan):
    gaussian = at.calibrate(model, [batch], LENGTHS, method="gaussian")
    ratios = [
        a / b
        for layer in plan.factors
        for one, two in zip(plan.factors[layer], gaussian.factors[layer], strict=True)
        for a, b in zip(one, two, strict=True)
    ]
    assert max(ratios) < 1.6
    assert min(ratios) > 0.6
    assert drift(gaussian, "entropy_after") < 0.5 * drift(gaussian, "entropy_before")


def test_normalized_entropy_is_held_with_smaller_factors(model, batch, plan):
    relative = at.calibrate(model, [batch], LENGTHS, hold="normalized")
    last = lambda p: sum(h[-1] for heads in p.factors.values() for h in heads)  # noqa: E731
    assert last(relative) < last(plan)


def test_bounded_scores_cannot_be_held_and_it_is_said(batch):
    config = transformers.Gemma2Config(
        **{**ROPE_HEAD, "max_position_embeddings": 256, "sliding_window": 256},
        attn_logit_softcapping=0.4,
    )
    torch.manual_seed(0)
    model = transformers.Gemma2ForCausalLM(config).eval()
    plan = at.calibrate(model, [batch], LENGTHS)
    # logits within +-0.4 lose less than 0.4^2 / 2 of entropy, log 8 = 2.08 is asked for
    assert len(plan.unheld) == 8
    assert all(set(head) == {1.0} for heads in plan.factors.values() for head in heads)
    assert "8 heads cannot be held" in plan.table().caption


def test_encoders_and_tensors_calibrate_without_perplexity():
    from tests.models.test_watch import Model, sharp

    torch.manual_seed(0)
    model = sharp(Model())
    plan = at.calibrate(model, [torch.randn(2, 64, 32)], [16, 64])
    assert plan.effects[0].perplexity_before is None
    assert drift(plan, "entropy_after") < 0.3 * drift(plan, "entropy_before")


def test_factors_are_linear_in_log_n_and_constant_outside():
    rule = Planned((16, 64), ((1.0, 3.0), (1.0, 1.0)))
    visible = torch.tensor([2, 16, 32, 64, 1000]).view(1, 1, -1)
    got = rule(8, visible)
    torch.testing.assert_close(got[0, 0], torch.tensor([1.0, 1.0, 2.0, 3.0, 3.0]))
    torch.testing.assert_close(got[0, 1], torch.ones(5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": [16]}, "lengths must be two or more increasing integers >= 2"),
        ({"lengths": [64, 16]}, "lengths must be two or more increasing integers >= 2"),
        ({"lengths": [16, 512]}, "batches must be at least as long as the longest length 512"),
        ({"hold": "x"}, "hold must be one of"),
        ({"method": "x"}, "method must be one of"),
        ({"batches": []}, "batches must be at least one batch"),
        ({"batches": ["text"]}, r"batches must be mappings, or tensors \[B,N,...\], got str"),
        ({"batches": [torch.arange(9)]}, r"batches must be mappings, or tensors .* got \[9\]"),
    ],
)
def test_bad_arguments(model, batch, options, message):
    given = {"batches": [batch], "lengths": LENGTHS} | options
    with pytest.raises(ArgumentError, match=message):
        at.calibrate(model, given.pop("batches"), given.pop("lengths"), **given)


def test_a_plan_and_a_scale_together_are_refused(model, plan):
    with pytest.raises(ArgumentError, match="scale must be left out where a plan is given"):
        at.steer(model, plan, scale=1.0)
    assert msgspec.structs.replace(plan, unheld=()).rule("nowhere") is None


def test_a_plan_may_be_given_as_the_scale(model, plan, batch):
    handle = at.steer(model, plan)
    want = model(**batch).logits
    handle.undo()
    handle = at.steer(model, scale=plan)
    got = model(**batch).logits
    handle.undo()
    assert torch.equal(got, want)


def test_a_plan_is_judged_on_rows_that_made_no_part_of_it():
    model = load_embedded()
    ids = torch.tensor(list(sample_bytes()[: 4 * 512])).view(4, 512)
    plan = at.calibrate(model, ids, [128, 512])
    assert at.calibrate(model, ids[:3], [128, 512]).factors == plan.factors
    assert (plan.judged.length, plan.judged.last, plan.judged.held_out) == (512, 384, True)
    with warnings.catch_warnings(category=RuntimeWarning, action="ignore"):
        handle = at.steer(model, plan)
    after = token_losses(model, ids[3:])[:, -384:]
    handle.undo()
    before = token_losses(model, ids[3:])[:, -384:]
    assert plan.judged.change == paired(stretches(before), stretches(after))
    cut = truncated_losses(model, ids[3:], trained=128, last=384)
    assert plan.judged.truncation == paired(stretches(cut), stretches(after))
    assert not at.calibrate(model, ids[:3], [128, 512]).judged.held_out


def test_a_model_that_predicts_nothing_is_not_judged():
    model = load_embedded()
    ids = torch.tensor(list(sample_bytes()[:512])).view(2, 256)
    plan = at.calibrate(model, ids, [128, 256], loss=lambda output, batch: (0.0, 0))
    assert plan.judged is None
    assert plan.helps is None


def test_a_masked_model_has_no_loss_of_the_next_token():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}
    config = transformers.BertConfig(intermediate_size=16, max_position_embeddings=64, **sizes)
    model = transformers.BertForMaskedLM(config).eval()
    rows = torch.randint(64, (4, 64), generator=torch.Generator().manual_seed(0))
    plan = at.calibrate(model, [rows], [16, 32, 64])
    assert plan.judged is None
    assert plan.helps is None
    assert {effect.perplexity_after for effect in plan.effects} == {None}
