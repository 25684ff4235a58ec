import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM

import attentropy as at
from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.extensions import extend as extending
from attentropy.extensions.candidates import plan_of
from attentropy.extensions.export import export
from attentropy.extensions.fits import far_windows, temperatures
from attentropy.extensions.record import ExtensionError, Record
from attentropy.extensions.result import Extension
from attentropy.lab.embedded import load_embedded, sample_bytes
from tests.extensions.small_models import grouped_llama, words
from tests.listeners import Heard

BYTES = torch.tensor(list(sample_bytes()[:12000]))


def encode(text):
    return list(text.encode())


@pytest.fixture(scope="module", autouse=True)
def few_steps():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(temperatures, "STEPS", 2)
        yield


@pytest.fixture(scope="module")
def embedded():
    kept = []
    found = at.extend(
        load_embedded(), BYTES, to=1024, texts=6, finalists=1, encode=encode,
        keep=lambda record: kept.append(record.encoded()),
    )  # fmt: skip
    return found, kept


def test_a_model_that_suffers_dilution_gets_a_window_or_a_scale(embedded):
    found, _ = embedded
    assert found.record.complete
    by_name = {one.name: one for one in found.outcomes}
    assert {"truncated", "untouched", "window of 127, 1 sink"} <= set(by_name)
    assert by_name["untouched"].loss.difference > 0.1
    assert found.outcomes[0].loss.difference < 0.03
    probed = {one.candidate: one.change for one in found.record.screened}
    assert probed["log n"].gain > 0.3
    assert any("EmbeddedModel has no rotary positions" in note for note in found.record.notes)
    assert any("128 tokens have no room" in note for note in found.record.notes)
    assert any("One temperature per head" in note for note in found.record.notes)


def test_a_stopped_extension_goes_on_where_it_was(embedded, tmp_path):
    found, kept = embedded
    (tmp_path / "extend.json").write_bytes(kept[len(kept) // 2])
    done = Record.load(tmp_path / "extend.json")
    steps = []
    again = at.extend(
        load_embedded(), BYTES, to=1024, texts=6, finalists=1, encode=encode, done=done,
        keep=steps.append,
    )  # fmt: skip
    assert 0 < len(steps) < len(kept)
    assert [one.name for one in again.outcomes] == [one.name for one in found.outcomes]
    assert again.outcomes[0].loss.after == pytest.approx(found.outcomes[0].loss.after, rel=1e-5)
    with pytest.raises(ExtensionError, match="of another model, length or text"):
        at.extend(load_embedded(), BYTES, to=500, done=done)


def test_a_model_that_finds_passkeys_is_fitted_to_retrieval(tmp_path, monkeypatch):
    """The small model finds none, so it is said to have found them inside of its range."""
    model, heard = grouped_llama(), Heard()
    own = extending.tried

    def inside_found(setting, *args, **options):
        one = own(setting, *args, **options)
        lucky = setting.name == "untouched" and len(one.hits) == 10
        return msgspec.structs.replace(one, hits=(True,) * 10) if lucky else one

    monkeypatch.setattr(extending, "tried", inside_found)
    monkeypatch.setattr(far_windows, "ROOM", 0)
    monkeypatch.setattr(far_windows, "STEPS", 2)
    ids = torch.randint(97, (5000,), generator=torch.Generator().manual_seed(0))
    kept = []
    found = at.extend(
        model, ids, to=2048, trained=1024, texts=1, finalists=1, exported=True, encode=words,
        listener=heard, keep=lambda record: kept.append(record.encoded()),
    )  # fmt: skip
    name = "fitted to retrieval x2"
    half = f"{name}, half way"
    assert {name, half, "YaRN x2", "truncated"} <= {one.name for one in found.outcomes}
    assert any("worded alike" in note for note in found.record.notes)
    assert heard.done == pytest.approx(heard.total, rel=0.25)
    setting = found.record.candidate(name)
    assert len(setting.rope.long_factor) == 4
    plan = plan_of(setting, found.record.task)
    handle = at.steer(model, plan)
    with torch.no_grad():
        want = model(ids[None, :700]).logits
    handle.undo()
    export(model, plan, tmp_path / "out")
    with torch.no_grad():
        got = AutoModelForCausalLM.from_pretrained(tmp_path / "out")(ids[None, :700]).logits
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    (tmp_path / "extend.json").write_bytes(kept[-2])
    stages = Heard()
    at.extend(
        model, ids, to=2048, trained=1024, texts=1, finalists=1, exported=True, encode=words,
        done=Record.load(tmp_path / "extend.json"), listener=stages,
    )  # fmt: skip
    assert not any("step 1 of 2" in text for text in stages.stages), "it is not fitted again"


def test_a_rotary_model_is_tried_chosen_and_exported(tmp_path):
    model, heard = grouped_llama(), Heard()
    ids = torch.randint(97, (3000,), generator=torch.Generator().manual_seed(0))
    before = model(ids[None, :100]).logits
    found = at.extend(
        model, ids, to=128, texts=3, finalists=1, per_head=False, exported=True, listener=heard
    )
    assert torch.equal(model(ids[None, :100]).logits, before)
    assert "cannot be exported, so it is left out: log n, windows" in heard.said[0]
    assert any("YaRN x2, no temperature" in text for text in heard.stages)
    assert heard.done == pytest.approx(heard.total, rel=0.25)
    assert len(heard.steps) > 3 * len(heard.stages), "layer by layer"
    assert "YaRN x2" in {one.name for one in found.outcomes}, (
        "as published, whatever the probe says"
    )
    fitted = [one.name for one in found.record.candidates if "fitted" in one.name]
    assert len(fitted) == 1
    assert "x4" not in fitted[0], "the probe overrates larger factors"
    assert not any("window" in one.name for one in found.outcomes), "no row can be exported"
    # random text decides nothing: what the choice would be is exported
    chosen = found.record.candidate(found.ranked[0])
    found.__dict__["best"] = chosen
    lines = found.export(tmp_path / "longer")
    assert any("vllm serve" in line for line in lines)
    written = AutoModelForCausalLM.from_pretrained(tmp_path / "longer").eval()
    handle = at.steer(model, found.plan)
    torch.testing.assert_close(written(ids[None, :100]).logits, model(ids[None, :100]).logits,
                               rtol=1e-4, atol=1e-4)  # fmt: skip
    handle.undo()


def test_what_cannot_be_exported_is_said_before_the_work():
    with pytest.raises(UnsupportedError, match="only models of transformers are exported"):
        at.extend(load_embedded(), BYTES, to=512, exported=True)


def test_a_model_whose_trained_length_is_unknown_is_refused():
    model = load_embedded()
    del model.trained_length
    with pytest.raises(ArgumentError, match="trained must be given, for neither the model nor its"):
        at.extend(model, BYTES, to=512)
    assert isinstance(
        at.extend(model, BYTES, to=160, trained=128, texts=1, finalists=1, per_head=False),
        Extension,
    )
