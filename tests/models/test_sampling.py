"""The logits processor: what it knows before each token, against weights and logits in float64."""

import math

import pytest
import torch

import attentropy as at
from attentropy.core.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from attentropy.models.sampling import NextToken, entropies
from tests.scans.small_llama import llama

IDS = torch.randint(3, 97, (2, 9), generator=torch.Generator().manual_seed(1))
PLAIN = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def sdpa():
    model = llama()
    model.set_attn_implementation("sdpa")
    return model


def collected(model, ids, **more):
    """What a rule is told in each step, and the tokens."""
    told: list[NextToken] = []

    def rule(now):
        told.append(now)
        return torch.ones(len(ids))

    with at.watch(model) as w:
        found = model.generate(
            ids, logits_processor=[at.EntropyLogitsProcessor(w, rule)], **{**PLAIN, **more}
        )
    return told, found


def test_entropies_of_attention_and_logits_with_padding():
    mask = torch.ones_like(IDS)
    mask[1, :4] = 0
    told, found = collected(sdpa(), IDS, attention_mask=mask)
    for sequence, start in ((0, 0), (1, 4)):
        with torch.no_grad():
            out = llama()(found[sequence : sequence + 1, start:], output_attentions=True)
        for step, now in enumerate(told):
            query = 9 - start + step - 1
            p = torch.stack(out.attentions)[:, 0, :, query].double()
            logs = p.clamp(min=1e-300).log()
            entropy = -(p * logs).sum(-1)
            spread = (p * (logs + entropy[..., None]).square()).sum(-1)
            q = out.logits[0, query].double().softmax(-1)
            of_logits = float(-(q * q.log()).sum())
            variance = float((q * (q.log() + of_logits).square()).sum())
            expected = (of_logits, variance, entropy.mean(), spread.mean(), p.amax(-1).mean())
            for got, want in zip(now[:5], expected, strict=True):
                assert float(got[sequence]) == pytest.approx(float(want), abs=2e-4)


def test_scores_are_divided_by_the_temperature_of_each_sequence():
    model, factors = sdpa(), torch.tensor([0.5, 2.0])
    with at.watch(model) as w:
        processor = at.EntropyLogitsProcessor(w, lambda now: factors)
        out = model.generate(
            IDS,
            logits_processor=[processor],
            output_scores=True,
            output_logits=True,
            return_dict_in_generate=True,
            **PLAIN,
        )
    for scores, logits in zip(out.scores, out.logits, strict=True):
        torch.testing.assert_close(scores, logits / factors[:, None])


def test_a_sequence_that_has_ended_keeps_its_scores():
    model = sdpa()
    end = int(model.generate(IDS, **PLAIN)[0, 10])
    told, _ = collected(model, IDS, eos_token_id=end)
    running = [now.running.tolist() for now in told]
    assert running[:3] == [[True, True], [True, True], [False, True]]
    assert all(not first for first, _ in running[2:])


def test_excluded_tokens_and_a_single_key_have_no_part():
    got = entropies(torch.tensor([[0.0, 0.0, -math.inf], [5.0, -math.inf, -math.inf]]))
    assert got[0].tolist() == pytest.approx([math.log(2), 0.0], abs=1e-6)
    assert got[1].tolist() == [0.0, 0.0]
    told, _ = collected(sdpa(), IDS[:, :1])
    assert told[0].attention_entropy.tolist() == [0.0, 0.0]
    assert bool((told[1].attention_entropy > 0).all())


def test_the_rule_is_log_linear_and_bounded():
    one = torch.ones(1)
    now = NextToken(one, 2 * one, 3 * one, 4 * one, one, one == 1)
    rule = at.TemperatureByEntropy(
        base=1.5, entropy=0.1, varentropy=-0.2, attention_entropy=0.3, attention_varentropy=-0.1
    )
    assert float(rule(now)) == pytest.approx(1.5 * math.exp(0.1 - 0.4 + 0.9 - 0.4))
    assert float(at.TemperatureByEntropy(entropy=-99)(now)) == pytest.approx(0.2)
    assert float(at.TemperatureByEntropy(entropy=99)(now)) == pytest.approx(2.0)


@pytest.mark.parametrize("options", [{"low": 0.0}, {"low": 3.0}, {"base": -1.0}])
def test_bounds_of_the_rule_are_checked(options):
    with pytest.raises(ArgumentError, match="must be positive"):
        at.TemperatureByEntropy(**options)


def test_mistakes_are_named():
    model = sdpa()
    with pytest.raises(ArgumentTypeError, match=r"what at.watch\(model\) gives, got Llama"):
        at.EntropyLogitsProcessor(model)
    w = at.watch(model)
    with pytest.raises(at.AttentropyError, match="not watched"):
        model.generate(IDS, logits_processor=[at.EntropyLogitsProcessor(w)], **PLAIN)
    wrong = (lambda now: torch.zeros(2), lambda now: torch.ones(3), lambda now: math.nan)
    for rule in wrong:
        with pytest.raises(ArgumentError, match="positive temperatures, one for each of 2"), w:
            model.generate(IDS, logits_processor=[at.EntropyLogitsProcessor(w, rule)], **PLAIN)


@pytest.mark.parametrize(
    ("more", "message"),
    [({"num_beams": 2}, "beam search"), ({"prompt_lookup_num_tokens": 2}, "assisted decoding")],
)
def test_beams_and_assistants_are_refused(more, message):
    model, given = sdpa(), IDS[:1]
    with pytest.raises(UnsupportedError, match=message), at.watch(model) as w:
        model.generate(given, logits_processor=[at.EntropyLogitsProcessor(w)], **{**PLAIN, **more})
