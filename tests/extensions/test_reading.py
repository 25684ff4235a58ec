import pytest
import torch
import torch.nn.functional as F

from attentropy.extensions.candidates import Setting, Task
from attentropy.extensions.passkeys import Haystack, Question
from attentropy.extensions.reading import tried
from attentropy.lab.embedded import load_embedded
from attentropy.models.rope import settings
from tests.extensions.small_models import grouped_llama

LAYERS = {f"model.layers.{i}.self_attn": 6 for i in range(2)}
TASK = Task(model="x", trained=64, to=120, layers=LAYERS)
IDS = torch.arange(115) * 11 % 97
QUESTIONS = (
    Question(torch.tensor([5, 6, 7]), torch.tensor([8, 9])),
    Question(torch.tensor([1, 2]), torch.tensor([3, 4, 5])),
)


def by_hand(model, context, question):
    """The answer's losses with everything read at once, in float64."""
    whole = torch.cat([context, question.prompt, question.answer])[None]
    size = len(question.answer)
    scores = model(whole).logits[0, -size - 1 : -1].double()
    hit = bool((scores.argmax(-1) == question.answer).all())
    return float(F.cross_entropy(scores, question.answer)), hit


@pytest.mark.parametrize("truncated", [False, True])
def test_every_question_follows_the_whole_text(monkeypatch, truncated):
    monkeypatch.setattr("attentropy.extensions.reading.CHUNK", 32)
    model = grouped_llama()
    one = Setting(name="x", truncated=truncated)
    found = tried(one, model, TASK, Haystack(IDS, QUESTIONS), window=2, last=20)
    context = IDS[-(64 - 5) :] if truncated else IDS
    wanted = [by_hand(model, context, question) for question in QUESTIONS]
    assert found.digits == pytest.approx([loss for loss, _ in wanted], rel=1e-4)
    assert found.hits == tuple(hit for _, hit in wanted)
    scores = model(context[None]).logits[0, -21:-1].double()
    assert found.losses == pytest.approx([float(F.cross_entropy(scores, context[-20:]))], rel=1e-4)
    assert (found.candidate, found.window, found.buckets[-1].stop) == ("x", 2, len(context))


def test_a_candidate_is_applied_to_text_and_questions():
    model = grouped_llama()
    plain, turned = (
        tried(
            Setting(name="x", rope=rope), model, TASK, Haystack(IDS, QUESTIONS), window=0, last=20
        )
        for rope in (None, settings.linear(trained=64, to=120))
    )
    assert plain.losses != turned.losses
    assert plain.digits != turned.digits


def test_a_model_without_a_cache_reads_the_text_again():
    model = load_embedded().requires_grad_(False)
    task = Task(model="EmbeddedModel", trained=128, to=200, layers={})
    text = Haystack(IDS, QUESTIONS)
    found = tried(Setting(name="x"), model, task, text, window=0, last=20)
    whole = torch.cat([IDS, QUESTIONS[0].prompt, QUESTIONS[0].answer])[None]
    scores = model(whole)[0, -3:-1].double()
    assert found.digits[0] == pytest.approx(float(F.cross_entropy(scores, whole[0, -2:])), rel=1e-4)
