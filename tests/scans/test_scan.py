"""at.scan: what it takes, what it refuses, what it gives."""

import numpy as np
import pytest
import torch
from torch import nn

import attentropy as at
from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.lab.embedded import load_embedded, sample_bytes
from attentropy.models.watch import NothingRecorded
from attentropy.scans import schema
from attentropy.scans.errors import ScanError
from attentropy.scans.judging import words
from attentropy.scans.loading.inputs import Tokens, of
from attentropy.scans.scan import scan
from attentropy.scans.schema import Scan
from tests.listeners import Heard
from tests.scans.tiny import make, picky

IDS = torch.randint(256, (600,), generator=torch.Generator().manual_seed(3))


def test_scan_from_python_needs_no_more_than_model_and_tokens():
    ids = torch.randint(256, (600,), generator=torch.Generator().manual_seed(3))
    kept = []
    found = scan(make().eval(), ids, lengths=[16, 32], batch=3, keep=kept.append)
    assert isinstance(found, Scan)
    assert found.complete
    assert [one.lengths for one in kept] == [[16], [16, 32]]
    assert found.model.kind == "module"
    assert found.measures[0].tokens == 592
    assert found.slopes[0][0].value is not None
    assert {row.status for row in found.coverage} == {"verified"}
    assert [row.module for row in found.coverage] == [layer.layer for layer in found.layers]
    assert any(said.startswith("All attention was seen: ") for said in words.sentences(found))
    again = scan(make().eval(), ids, lengths=[16, 32], batch=3)
    assert again.measures[1].rows == found.measures[1].rows


def test_a_finished_scan_that_is_resumed_finds_the_same():
    ids = torch.randint(256, (600,), generator=torch.Generator().manual_seed(3))
    found = scan(make().eval(), ids, lengths=[16, 32])
    again = scan(make().eval(), ids, lengths=[16, 32], done=found)
    assert again.measures == found.measures
    assert again.coverage == found.coverage
    assert again.findings == found.findings
    assert again.layers == found.layers


def t5():
    from transformers import T5Config, T5Model

    torch.manual_seed(0)
    config = T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=4)
    return T5Model(config).eval()


def test_an_encoder_and_a_decoder_read_the_same_text():
    model = t5()
    tokens = torch.randint(97, (400,), generator=torch.Generator().manual_seed(1))
    found = scan(model, tokens, lengths=[16, 32])
    assert [(layer.kind, layer.causal) for layer in found.layers] == [
        ("self", False),
        ("self", True),
        ("cross", False),
    ]
    assert found.measures[0].perplexity is None
    assert not any("--calibrate" in advice.text for advice in found.advice)
    with pytest.raises(ScanError, match="T5Model has an encoder and a decoder: scan without it"):
        scan(model, tokens, lengths=[16, 32], calibrate=True)


def test_a_model_without_attention_is_told_so():
    class Sum(nn.Module):
        def forward(self, ids):
            return ids.float().cumsum(-1)

    with pytest.raises(NothingRecorded, match="Sum ran, but made no call"):
        scan(Sum(), torch.arange(200), lengths=[16])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch": 0}, ArgumentError, "^batch must be an integer >= 1, got 0$"),
        ({"batch": True}, ArgumentError, "^batch must be an integer >= 1, got True$"),
        ({"batch": 2.0}, ArgumentError, "^batch must be an integer >= 1, got 2.0$"),
        (
            {"lengths": [64, 32]},
            ScanError,
            r"^lengths must increase and be 2 or more, got \[64, 32\]$",
        ),
        ({"lengths": []}, ScanError, r"^lengths must increase and be 2 or more, got \[\]$"),
        ({"lengths": [1, 2]}, ScanError, "^lengths must increase"),
        (
            {"lengths": "16,32"},
            ArgumentTypeError,
            "^lengths must be a list of integers, got '16,32'$",
        ),
        ({"lengths": 16}, ArgumentTypeError, "^lengths must be a list of integers, got 16$"),
        ({"lengths": [16.0, 32.0]}, ArgumentTypeError, "^lengths must be a list of integers"),
        ({"lengths": [True, 32]}, ArgumentTypeError, "^lengths must be a list of integers"),
        (
            {"lengths": [16, 32], "calibrate": True},
            ScanError,
            "^calibrate needs a length beyond 32",
        ),
        ({"done": "scan.json"}, ArgumentTypeError, "^done must be a Scan, got str$"),
    ],
)
def test_bad_options_are_refused_by_the_names_of_python(options, error, message):
    with pytest.raises(error, match=message):
        at.scan(make(), IDS, **options)


def test_bad_models_and_tokens_are_refused_by_name():
    with pytest.raises(ArgumentTypeError, match="^model must be a torch.nn.Module, got str$"):
        at.scan("gpt2", IDS)
    with pytest.raises(ArgumentError, match="^tokens must be two ids or more, got 0$"):
        at.scan(make(), [])
    with pytest.raises(ArgumentTypeError, match="^tokens must be .*, got numbers of type float32$"):
        at.scan(make(), torch.ones(9))
    with pytest.raises(
        ScanError, match="none of lengths can be measured: 64: the text has only 9 tokens"
    ):
        at.scan(make(), list(range(9)), lengths=[64])


@pytest.mark.parametrize(
    "form", [torch.Tensor.tolist, torch.Tensor.numpy, lambda ids: ids[None], lambda ids: ids.int()]
)
def test_tokens_of_every_form_give_the_same_scan(form):
    want = at.scan(make().eval(), IDS, lengths=[16, 32])
    found = at.scan(make().eval(), form(IDS), lengths=np.array([16, 32]))
    assert found.input.sha256 == want.input.sha256
    assert [m.rows for m in found.measures] == [m.rows for m in want.measures]


def test_a_string_is_read_by_a_model_of_bytes():
    model = make().eval()
    model.vocabulary = 256
    text = "a short text, " * 20
    found = at.scan(model, text, lengths=[16, 32])
    assert found.input.tokenizer == "bytes"
    # a model of its own: the first pass that a watch sees of a model is the model's own
    want = at.scan(make().eval(), list(text.encode()), lengths=[16, 32])
    assert found.measures[0].rows == want.measures[0].rows


def test_every_length_reads_the_same_tokens_and_no_more_than_its_budget():
    ids = torch.randint(256, (20_000,), generator=torch.Generator().manual_seed(0))
    found = at.scan(make().eval(), ids, lengths=[64, 128], batch=1)
    assert [measure.tokens for measure in found.measures] == [8192, 8192]
    assert [measure.sequences for measure in found.measures] == [128, 64]


def test_a_stopped_scan_of_another_model_or_text_is_refused():
    done = at.scan(make().eval(), IDS, lengths=[16])
    with pytest.raises(ScanError, match="^done: the stopped scan has another text: "):
        at.scan(make().eval(), IDS.flip(0), lengths=[16, 32], done=done)
    with pytest.raises(ScanError, match="^done: the stopped scan has another dtype: float32, not"):
        at.scan(make().eval().double(), IDS, lengths=[16, 32], done=done)
    done.model.parameters += 1
    with pytest.raises(ScanError, match="^done: the stopped scan has another number of parameters"):
        at.scan(make().eval(), IDS, lengths=[16, 32], done=done)


def test_a_listener_hears_all_of_the_work():
    heard = Heard()
    at.scan(picky().eval(), IDS, lengths=[16, 64, 128, 4096], listener=heard)
    assert heard.stages[:4] == ["length 16", "length 64", "length 128", "drawing attention maps"]
    assert heard.stages[4] == "beyond 32, compared with truncation"
    assert heard.said == [
        "length 4,096 is left out: the text has only 600 tokens",
        "length 128 is left out: the model refuses it (more than 100 tokens)",
    ]
    assert heard.done == pytest.approx(heard.total, rel=0.4)  # 128 was refused


def test_calibration_gives_a_plan_with_its_effects():
    found = at.scan(make().eval(), IDS, lengths=[16, 32, 64], calibrate=True)
    assert found.plan.reference == 32
    assert [effect.length for effect in found.plan.effects] == [32, 64]
    assert [remedy.name for remedy in found.remedies].count("plan of calibrate") == 1
    assert found.plan.judged.length == 64
    assert len(found.advice) == sum(remedy.change.helps for remedy in found.remedies)


def test_a_model_that_breaks_is_told_where_why_and_what_helps():
    model = load_embedded()
    ids = torch.tensor(list(sample_bytes()[:4096]))
    found = at.scan(model, ids, lengths=[128, 1024], batch=4)
    assert found.verdict.state == "breaks"
    assert found.verdict.cause.name == "dilution"
    assert "dilution is the cause" in found.verdict.sentence
    assert 128 < found.verdict.breaks_at < 900
    assert [one.change.after for one in found.remedies] == sorted(
        one.change.after for one in found.remedies
    )
    assert {"window of 128 with 1 sink", "scale with log n"} <= {one.name for one in found.remedies}
    assert found.advice[0].call == found.remedies[0].call
    assert found.remedies[0].perplexity_after < found.measures[1].perplexity
    assert [b.stop for b in found.measures[1].loss_by_position][-1] == 1024
    assert schema.decode(schema.encode(found)) == found


def test_inside_of_its_range_a_model_is_healthy_and_nothing_is_offered():
    ids = torch.tensor(list(sample_bytes()[:4096]))
    found = at.scan(load_embedded(), ids, lengths=[32, 64, 128])
    assert found.verdict.state == "healthy"
    assert found.advice == found.remedies == []
    assert not any(finding.call for finding in found.findings)


def test_special_tokens_stand_around_every_window():
    seen = []

    class Noted(type(make())):
        def forward(self, ids):
            seen.append(ids)
            return super().forward(ids)

    text = of(IDS, make())
    tokens = Tokens(text.ids, text.about, begin=(7,), end=(8, 9))
    at.scan(Noted().eval(), tokens, lengths=[16, 32])
    assert all(set(ids[:, 0].tolist()) == {7} for ids in seen[:2])
    assert all(ids[:, -2:].tolist() == [[8, 9]] * len(ids) for ids in seen[:2])
    assert seen[0][0, 1:-2].tolist() == text.ids[:13].tolist()


@pytest.mark.parametrize("name", ["trained", "tokens_per_length"])
def test_numbers_of_tokens_are_checked(name):
    with pytest.raises(ArgumentError, match=f"{name} must be an integer >= 1, got 0"):
        at.scan(make(), IDS, **{name: 0})


def test_a_text_of_one_token_is_warned_of_before_the_work_begins():
    heard = Heard()
    found = at.scan(make().eval(), [5] * 200, lengths=[16], listener=heard)
    assert heard.said == ["beware: 100% of the tokens are the same one (5): this is hardly a text"]
    assert "But 100% of the tokens are the same one" in words.headline(found)
