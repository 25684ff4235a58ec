"""A newcomer reads what a watched forward pass runs through: few files, each named in the docs."""

import re
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import attentropy as at
from attentropy.attention import plans
from tests.models.test_watch import Model
from tests.models.zoo import build, inputs

SOURCE = Path(at.__file__).parent
PAGE = SOURCE.parents[1] / "docs" / "contributing" / "architecture.md"


@contextmanager
def files():
    """Files of attentropy that run inside."""
    found = set()

    def enter(frame, event, argument):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(str(SOURCE)):
            found.add(str(Path(name).relative_to(SOURCE)))

    sys.setprofile(enter)
    try:
        yield found
    finally:
        sys.setprofile(None)


def watched(model, run):
    with torch.no_grad():
        with at.watch(model):  # everything is imported, and the calls are known
            for _ in range(4):
                run()
        with files() as found, at.watch(model):
            run()
    return found


def attended():
    """Files that a call of attend() runs through when there is no plan of its kind yet."""
    first, q = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 6, 8)
    at.attend(first, first, first, mask=at.causal)
    plans._PLANS.clear()
    with files() as found:
        at.attend(q, q, q, mask=at.causal)
    return found


def told(title="A watched forward pass"):
    """Files of a walk, as the page lists them under its title."""
    text = PAGE.read_text(encoding="utf-8")
    walk = text.split(f"# {title}\n", 1)[1].split("\n##", 1)[0]
    return set(re.findall(r"`([a-z_/]+\.py)`", walk))


def test_a_plain_model():
    model, x = Model(), torch.randn(1, 5, 32)
    own = watched(model, lambda: model(x)) - attended()
    assert len(own) <= 14, sorted(own)
    assert own <= told()


def test_a_transformers_model():
    pytest.importorskip("transformers")
    model, batch = build("llama", "sdpa"), inputs("llama", padded=False)
    own = watched(model, lambda: model(**batch)) - attended()
    assert len(own) <= 15, sorted(own)
    assert own <= told()
