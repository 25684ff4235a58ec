"""w.tokens(): every generated token against a plain forward pass over the whole sequence."""

import pytest
import torch

import attentropy as at
from attentropy.core.errors import UnsupportedError
from attentropy.models.watch import NothingRecorded
from tests.scans.small_llama import llama

NEW = 7
IDS = torch.randint(3, 97, (2, 11), generator=torch.Generator().manual_seed(1))
PLAIN = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def sdpa():
    model = llama()
    model.set_attn_implementation("sdpa")
    return model


def expected(ids, mask=None):
    """Entropy, varentropy and largest weight [L,B,H,N], and -log p of every next token."""
    with torch.no_grad():
        out = llama()(ids, attention_mask=mask, output_attentions=True)
    p = torch.stack(out.attentions).double()
    logs = p.clamp(min=1e-300).log()
    entropy = -(p * logs).sum(-1)
    spread = (p * (logs + entropy[..., None]).square()).sum(-1)
    log_p = out.logits.double().log_softmax(-1)
    return (entropy, spread, p.amax(-1)), -log_p[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]


def check(rows, found, mask=None, start=11):
    (entropy, spread, top), surprise = expected(found, mask)
    for row in rows:
        at_query = start + row.step - 1
        assert row.token == found[row.sequence, at_query + 1]
        assert row.surprise == pytest.approx(float(surprise[row.sequence, at_query]), abs=1e-4)
        for got, want in (
            (row.entropy, entropy),
            (row.varentropy, spread),
            (row.top_probability, top),
        ):
            torch.testing.assert_close(
                torch.tensor(got).double(), want[:, row.sequence, :, at_query], atol=2e-4, rtol=2e-4
            )


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_rows_come_in_order_for_every_sequence(cache):
    model = sdpa()
    plain = model.generate(IDS, cache_implementation=cache, **PLAIN)
    with at.watch(model) as w:
        found = model.generate(IDS, cache_implementation=cache, **PLAIN)
    assert found.equal(plain)
    rows = w.tokens()
    assert [(row.step, row.sequence) for row in rows] == [
        (t, b) for t in range(NEW) for b in (0, 1)
    ]
    assert rows[0].layers == tuple(f"model.layers.{i}.self_attn" for i in range(2))
    check(rows, found)


def test_padding_on_the_left():
    model, mask = sdpa(), torch.ones_like(IDS)
    mask[1, :4] = 0
    with at.watch(model) as w:
        found = model.generate(IDS, attention_mask=mask, **PLAIN)
    longer = torch.cat((mask, torch.ones(2, NEW, dtype=mask.dtype)), 1)
    rows = [row for row in w.tokens() if row.sequence == 0]
    check(rows, found, longer)
    padded = [row for row in w.tokens() if row.sequence == 1]
    alone = sdpa()
    with at.watch(alone) as w:
        alone.generate(IDS[1:, 4:], **PLAIN)
    for row, other in zip(padded, w.tokens(), strict=True):
        torch.testing.assert_close(
            torch.tensor(row.entropy), torch.tensor(other.entropy), atol=1e-4, rtol=1e-4
        )


def test_a_sequence_ends_with_its_last_token():
    model = sdpa()
    tokens = model.generate(IDS, **PLAIN)[0, 11:].tolist()
    with at.watch(model) as w:
        model.generate(IDS[:1], **{**PLAIN, "eos_token_id": tokens[2]})
    assert [row.token for row in w.tokens()] == tokens[: tokens.index(tokens[2]) + 1]


def test_two_calls_and_a_criterion_of_the_user():
    model, asked = sdpa(), []

    def stop(ids, scores, **_):
        asked.append(ids.shape[1])
        return torch.full((len(ids),), ids.shape[1] >= 13)

    with at.watch(model) as w:
        model.generate(IDS[:1], stopping_criteria=[stop], **PLAIN)
        model.generate(IDS[:1], **PLAIN)
    assert asked == [12, 13]
    assert [row.run for row in w.tokens()] == [0] * 2 + [1] * NEW
    w.clear()
    assert w.recorder.generation.rows == []


def test_generate_is_put_back():
    from transformers import GenerationMixin

    before = GenerationMixin.generate
    with at.watch(sdpa()) as w:
        w.model(IDS)
        assert GenerationMixin.generate is not before
    assert GenerationMixin.generate is before
    with pytest.raises(NothingRecorded, match="did not run while watched"):
        w.tokens()


def test_beams_are_refused_in_words():
    model = sdpa()
    plain = model.generate(IDS, num_beams=2, **PLAIN)
    with at.watch(model) as w:
        assert model.generate(IDS, num_beams=2, **PLAIN).equal(plain)
    with pytest.raises(UnsupportedError, match="beam search .* num_beams=1"):
        w.tokens()
    assert w.heads()


def test_passes_that_are_left_out_are_refused_in_words():
    model = sdpa()
    with at.watch(model, every=2) as w:
        model.generate(IDS, **PLAIN)
    with pytest.raises(UnsupportedError, match="watch with every=1"):
        w.tokens()


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    config = GPT2Config(vocab_size=97, bos_token_id=1, eos_token_id=2, **sizes)
    return GPT2LMHeadModel(config).eval()


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = T5Config(vocab_size=97, decoder_start_token_id=0, initializer_factor=3.0, **sizes)
    return T5ForConditionalGeneration(config).eval()


def of_weights(p):
    """Entropy, varentropy and the largest weight of weights [...,K]."""
    p = p.double()
    logs = p.clamp(min=1e-300).log()
    entropy = -(p * logs).sum(-1)
    return entropy, (p * (logs + entropy[..., None]).square()).sum(-1), p.amax(-1)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("make", [gpt2, t5])
def test_other_families_against_eager_weights(make, cache):
    model = make()
    with at.watch(model) as w:
        found = model.generate(IDS, cache_implementation=cache, **PLAIN)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        if make is t5:
            out, start = model(IDS, decoder_input_ids=found, output_attentions=True), 1
            own, cross = out.decoder_attentions[0], out.cross_attentions[0]
            weights = [own, cross]
        else:
            out, start = model(found, output_attentions=True), 11
            weights = list(out.attentions)
    log_p = out.logits.double().log_softmax(-1)
    for row in w.tokens():
        query = start + row.step - 1
        assert row.token == found[row.sequence, query + 1]
        assert row.surprise == pytest.approx(
            -float(log_p[row.sequence, query, row.token]), abs=1e-4
        )
        assert len(row.layers) == len(weights)
        for layer, p in enumerate(weights):
            wanted = of_weights(p[row.sequence, :, query])
            for got, want in zip(
                (row.entropy, row.varentropy, row.top_probability), wanted, strict=True
            ):
                assert got[layer] == pytest.approx(want.tolist(), abs=2e-4)


def test_assistants_are_refused_in_words():
    model = sdpa()
    with at.watch(model) as w:
        model.generate(IDS[:1], prompt_lookup_num_tokens=2, **PLAIN | {"eos_token_id": 0})
    with pytest.raises(UnsupportedError, match="assisted decoding .* generate without it"):
        w.tokens()
