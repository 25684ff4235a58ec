"""A sample of the zoo on every change, and all of it in the slow tier."""

import json
import os
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from tests.models.zoo import census, page, runner, trial
from tests.models.zoo.oracle import Weights
from tests.models.zoo.shrink import small

pytestmark = pytest.mark.filterwarnings("ignore")  # of models, on import and in passing
# bias of positions, cross attention, windows, two towers, latent keys, attention by hand, sinks, ...
SAMPLE = {
    "bert": "exact",
    "llama": "exact",
    "t5": "exact",
    "whisper": "exact",
    "swin": "exact",
    "clip": "exact",
    "deepseek_v3": "exact",
    "gpt_oss": "exact",
    "bloom": "exact",
    "deberta-v2": "exact",
    "llava": "exact",
    "mamba": "no attention",
}
GOAL = 0.97


@pytest.fixture(scope="module")
def entries():
    return {entry.architecture: entry for entry in census.architectures()}


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_is_exact(name, entries):
    record = census.trial(entries[name])
    assert (record.verdict, record.why) == (SAMPLE[name], "")


def test_architectures_are_listed_once(entries):
    assert {"bert", "gpt2", "qwen2_5_vl", "sam"} <= set(entries)
    assert len(entries) > 400


def test_configurations_are_small():
    from transformers import Blip2Config, DeepseekV3Config, Qwen2_5_VLConfig

    config = small(DeepseekV3Config)
    assert (config.hidden_size, config.num_hidden_layers, config.n_routed_experts) == (64, 2, 4)
    assert small(Blip2Config).qformer_config.hidden_size == 64
    config = small(Qwen2_5_VLConfig)
    assert sum(config.text_config.rope_parameters["mrope_section"]) * 2 == 16
    assert config.image_token_id < config.text_config.vocab_size


@dataclass
class Row:
    """What trial reads of a head row."""

    entropy: float
    rows: int
    layer: str = "a"
    call: int = 0
    phase: str = "forward"
    kind: str = "self"
    index: int = 0


def ran(*shape, path=("", "a"), seed=0):
    """An attention operator with random weights of the shape [B,H,Q,K]."""
    torch.manual_seed(seed)
    p = torch.randn(*shape, dtype=torch.float64).softmax(-1)
    return Weights(path, 1, shape, torch.special.entr(p).sum(-1), (p > 0).sum(-1), True, True)


def told(weights):
    return [Row(float(weights.entropy[:, h].mean()), 6) for h in range(weights.shape[1])]


def faults(rows, must, may=(), said=()):
    return trial.matched(trial.Verdict("exact", told=list(said)), rows, list(must), list(may))


def test_rows_that_agree_have_no_fault():
    w = ran(2, 4, 3, 5)
    assert faults(told(w), [w]) == {}


def test_a_wrong_entropy_is_found():
    w = ran(2, 4, 3, 5)
    rows = told(w)
    rows[2].entropy += 1e-4
    assert list(faults(rows, [w])) == ["wrong number"]


def test_a_wrong_number_of_rows_is_found():
    w = ran(2, 4, 3, 5)
    rows = told(w)
    rows[1].rows = 5
    assert list(faults(rows, [w])) == ["wrong number"]


def test_what_is_unseen_is_told_from_what_is_named():
    w, other = ran(2, 4, 3, 5), ran(2, 4, 3, 5, path=("", "b.attn"), seed=1)
    assert faults(told(w), [w, other]) == {"unseen in silence": "1 of b.attn [2, 4, 3, 5]"}
    said = ["attentropy: nothing was recorded of b.attn (by hand)"]
    assert faults(told(w), [w, other], said=said) == {"unseen, named": "1 operators"}


def test_rows_of_nothing_are_false():
    assert list(faults(told(ran(2, 4, 3, 5)), [])) == ["false rows"]


def test_weighted_sums_may_be_recorded_or_left_out():
    w = ran(2, 4, 3, 5)
    assert faults(told(w), [], [w]) == faults([], [], [w]) == {}


def test_operators_of_other_shapes_in_one_slot_are_pooled():
    parts = [ran(2, 4, 3, 5), ran(2, 4, 3, 7, seed=1)]
    total = sum(w.entropy.sum((0, 2)) for w in parts) / 12
    rows = [Row(float(e), 12) for e in total]
    assert list(faults(rows, parts)) == ["pooled"]
    same = [ran(2, 4, 3, 5), ran(2, 4, 3, 5, seed=1)]
    total = sum(w.entropy.sum((0, 2)) for w in same) / 12
    assert faults([Row(float(e), 12) for e in total], same) == {}


def test_rows_of_padding_are_left_out():
    w = ran(2, 4, 3, 5)
    tokens = torch.tensor([[True, True, False], [True, True, True]])
    trial.without([w], tokens)
    assert w.visible.clamp(max=1).sum((0, 2)).tolist() == [5] * 4


def test_a_row_without_keys_has_no_number_and_hides_no_others():
    w = ran(2, 4, 3, 5)
    rows = [Row(float(e), 5) for e in w.entropy.sum((0, 2)).sub(w.entropy[0, :, 2]) / 5]
    w.entropy[0, :, 2], w.visible[0, :, 2] = torch.nan, 0
    assert faults(rows, [w]) == {}
    rows[1].entropy += 1e-4
    assert list(faults(rows, [w])) == ["wrong number"]


def test_weights_that_are_not_those_of_a_plain_run_are_unfit():
    w, out = ran(2, 4, 3, 5), [torch.ones(3)]
    assert trial._unfit(out, out, [w], same=1e-6) is None
    assert "differs from its plain one by 1.0e+00" in trial._unfit(
        out, [torch.zeros(3)], [w], same=1e-6
    )
    w.entropy[:] = torch.nan
    assert trial._unfit(out, out, [w], same=1e-6) == "weights are NaN"


def test_changes_of_outputs():
    a = torch.tensor([1.0, -2.0, torch.nan])
    assert trial.change([a], [a]) == 0
    assert trial.change([a], [a + 0.2]) == pytest.approx(0.1)
    assert trial.change([a], [a[:2]]) == torch.inf
    assert trial.change([a], [a.nan_to_num()]) == torch.inf


class Disturbed(torch.nn.Module):
    """Answers otherwise while it is watched or steered."""

    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).double()
        self.own = torch.nn.functional.scaled_dot_product_attention

    def forward(self, x):
        out = self.attention(x, x, x, need_weights=False)[0]
        return out + (torch.nn.functional.scaled_dot_product_attention is not self.own)


def test_a_changed_output_is_found():
    model, x = Disturbed().eval(), torch.randn(2, 5, 8, dtype=torch.float64)
    assert trial.verdict(model, lambda: model(x)).verdict == "changed output"


def test_a_census_goes_on_where_it_ended(tmp_path, monkeypatch, entries):
    asked = []

    def alone(entry, seconds):
        asked.append(entry.architecture)
        return {"architecture": entry.architecture, "verdict": "exact"}

    monkeypatch.setattr(runner, "alone", alone)
    monkeypatch.setattr(runner, "trial", lambda entry: None)
    cache, both = tmp_path / "zoo" / "some.jsonl", [entries["bert"], entries["llama"]]
    assert len(list(runner.run(both[:1], cache))) == 1
    assert len(list(runner.run(both, cache))) == 2
    assert asked == ["bert", "llama"]
    list(runner.run(both, cache, again=True, jobs=2))
    assert sorted(asked) == ["bert", "bert", "llama", "llama"]
    lines = [json.loads(line) for line in cache.read_text().splitlines()]
    assert len(lines) == 4
    assert {line["state"] for line in lines} == {runner.state()}


def test_the_state_follows_the_sources(tmp_path, monkeypatch):
    for name in ("__init__.py", "models/watch.py", "kernels/fused/cpp/row.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    monkeypatch.setattr(runner.attentropy, "__file__", str(tmp_path / "__init__.py"))
    before = runner.state()
    (tmp_path / "__init__.py").write_text("y")
    assert runner.state() == before
    (tmp_path / "models/watch.py").write_text('"""A docstring."""\nx  # a comment')
    assert runner.state() == before
    (tmp_path / "models/watch.py").write_text("y")
    assert runner.state() != before
    (tmp_path / "models/watch.py").write_text("x")
    (tmp_path / "kernels/fused/cpp/row.h").write_text("y")
    assert runner.state() != before


@pytest.mark.parametrize(
    ("does", "why"), [(lambda e: os._exit(3), "code 3"), (lambda e: time.sleep(60), "code None")]
)
def test_a_trial_that_dies_is_a_record(does, why, monkeypatch, entries):
    monkeypatch.setattr(runner, "trial", does)
    monkeypatch.setattr(runner, "PATIENCE", 1)
    monkeypatch.setattr(runner.multiprocessing.process.BaseProcess, "join", lambda *_: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record = runner.alone(entries["bert"], 1)
    assert record["verdict"] == "not built"
    assert "took more than 1 s" in record["why"]


def test_the_page_counts_and_lists():
    exact = vars(census.Record("bert", "BertModel", "exact", kinds=["self"], operators=2))
    lost = vars(census.Record("a|b", verdict="unseen, named", why="2 of <x>"))
    exact["state"] = "0123abcd"
    about = {"version": "5.0", "listed": 3, "now": "0123abcd"}
    text = page.page([exact, lost], [vars(census.Record("timm x"))], **about)
    assert "2 of the 3 architectures" in text
    assert "continues with the rest" in " ".join(text.split())
    plain = " ".join(text.split())
    assert "1 with that of this tree, `0123abcd`, 2 with one of a day before" in plain
    assert "No whole census" in plain
    assert "exact 1 of 2 (50.0%) of those with attention" in text
    assert "| bert | BertModel | self | 2 | exact |  |" in text
    assert "2 of &#60;x&#62;" in text


def test_the_page_counts_why_models_were_not_built():
    why = ["ImportError: natten", "ImportError: x", "ValueError: no inputs are known for y", "odd"]
    told = " ".join(page.reasons([{"why": one} for one in why]).split())
    assert told.startswith("Of 4, 2 need a package that is not installed here; 1 take inputs")
    assert told.endswith("that was not found.")


def test_the_page_names_the_one_state_of_its_records():
    records = [{"state": "0123abcd"}] * 2
    assert page.states(records, "0123abcd").endswith(": `0123abcd`, that of this tree.")
    assert page.states(records, "f").endswith(": `0123abcd`, and that of this tree is `f`.")
    assert "No whole census" in page.states([*records, {"state": "f"}], "f")


@pytest.mark.slow
def test_every_architecture(tmp_path):
    """ATTENTROPY_ZOO names a cache to go on with."""
    cache = Path(os.environ.get("ATTENTROPY_ZOO", tmp_path)) / "transformers.jsonl"
    records = list(runner.run(census.architectures(), cache, jobs=2))
    bad = ("changed output", "not undone", "crash", "wrong number", "unseen in silence", "harness")
    assert [json.dumps(r) for r in records if r["verdict"] in bad] == []
    attending = [r for r in records if r["verdict"] not in page.NONE]
    assert len(attending) > 400
    assert sum(r["verdict"] == "exact" for r in attending) >= GOAL * len(attending)
