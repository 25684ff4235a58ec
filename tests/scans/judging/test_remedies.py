"""Remedies are run, ordered by what they do, and their calls do the same when pasted."""

import torch

import attentropy as at
from attentropy.lab.embedded import load_embedded, sample_bytes
from attentropy.models.losses.tokens import token_losses
from attentropy.scans.judging.breaks import Beyond
from attentropy.scans.judging.remedies import (
    candidates,
    capped,
    largest_logit,
    planned,
    scaled,
    tried,
    windowed,
)
from attentropy.scans.measuring.lengths import Windows
from models.losses.diseases import Sick
from tests.scans.judging.test_breaks import beyond
from tests.scans.small_llama import llama
from tests.scans.tiny import make


def test_the_best_comes_first_and_every_call_does_what_was_measured():
    model = load_embedded()
    ids = torch.tensor(list(sample_bytes()[: 3 * 512]))
    whole = Beyond(model, Windows.of(ids, [512], batch=3), 512, trained=128, whole=None)
    wanted = [windowed(128, 1), scaled(128), capped(7.3), windowed(192, 4)]
    found = tried(whole, iter(wanted))
    assert [one.change.after for one in found] == sorted(one.change.after for one in found)
    for remedy in found:
        handle = eval(remedy.call, {"at": at, "model": model})
        losses = token_losses(model, ids.view(3, 512)).double()
        handle.undo()
        assert abs(float(losses[:, 127:].mean()) - remedy.change.after) < 1e-5
        assert abs(float(losses.mean().exp()) - remedy.perplexity_after) < 1e-4
        assert abs(remedy.change.before - float(whole.past.double().mean())) < 1e-9


def test_the_model_is_as_before_after_a_trial():
    model = load_embedded()
    ids = torch.tensor(list(sample_bytes()[:300]))[None]
    before = token_losses(model, ids)
    whole = Beyond(model, Windows.of(ids[0], [300], batch=1), 300, trained=128, whole=None)
    tried(whole, iter([scaled(128)]))
    assert torch.equal(token_losses(model, ids), before)


def test_a_model_that_cannot_be_steered_gets_no_remedy():
    whole = beyond(Sick(distance=0.5))
    assert tried(whole, candidates(whole.model, 64, 256, None)) == []


def test_scales_are_not_tried_against_distance():
    cause = beyond(Sick(distance=0.5)).why()
    names = [one.name for one in candidates(Sick(), 64, 256, cause.name)]
    assert names == ["window of 64 with 1 sink", "window of 64 with 4 sinks"]
    diluted = [one.name for one in candidates(Sick(), 64, 512, None)]
    assert diluted[0] == "scale with log n"
    assert diluted[-1] == "scale with log n in a window of 256 with 4 sinks"


def test_a_softcap_bounds_logits_by_twice_the_largest_of_the_trained_range():
    model = make().eval()
    ids = torch.randint(256, (600,), generator=torch.Generator().manual_seed(3))
    found = at.scan(model, ids, lengths=[16, 32, 64])
    with torch.no_grad(), at.watch(model) as w:
        model(ids[:576].view(-1, 32))
    most = largest_logit(found)
    assert most == max(row.max_logit for row in w.heads())
    named = [one for one in candidates(model, 32, 64, None, most=15.6) if "softcap" in one.options]
    assert [(one.name, one.call) for one in named] == [
        ("softcap of 31", "at.steer(model, softcap=31.0)")
    ]
    assert not any("softcap" in one.options for one in candidates(model, 32, 64, None))
    found.measures.clear()
    assert largest_logit(found) is None


def test_the_call_of_a_plan_names_its_file():
    assert planned(None, "out").call == "at.steer(model, at.Plan.load('out/plan.json'))"
    assert planned(None, None).call == "at.steer(model, scan.plan)"


def test_positions_are_tried_where_a_config_sets_them_and_distance_may_be_the_cause():
    model = llama()
    first = next(candidates(model, 64, 128, None, folder="out"))
    assert (first.name, first.call) == (
        "positions by YaRN x 2", "at.steer(model, at.Plan.load('out/positions.json'))",
    )  # fmt: skip
    ids = torch.randint(97, (256,), generator=torch.Generator().manual_seed(0))
    whole = Beyond(model, Windows.of(ids, [128], batch=2), 128, trained=64, whole=None)
    (found,) = tried(whole, [first])
    assert found.plan.rope.factor == 2
    handle = at.steer(model, found.plan)
    losses = token_losses(model, ids.view(2, 128)).double()
    handle.undo()
    assert abs(float(losses[:, 63:].mean()) - found.change.after) < 1e-5
