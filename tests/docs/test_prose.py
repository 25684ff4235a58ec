"""docs/prose.py finds what docs/prose.toml lists, and nothing that is code; the tree is clean."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SPEC = importlib.util.spec_from_file_location("prose", ROOT / "docs" / "prose.py")
prose = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(prose)


def _found(text, kind="markdown"):
    read = prose.of_python if kind == "python" else prose.of_markdown
    return [(line, words) for line, words, _ in prose.complaints(read(text), prose.rules())]


@pytest.mark.parametrize("sentence", [
    "It ended.",
    "How many.",
    "of which it is noted what becomes of it",
    "Weights that are no probabilities.",
    "What cannot be had.",
    "A head is told of once.",
    "Stay inside of the range.",
    "You shall leverage it in order to win.",
    "As issue 24 asked.",
])  # fmt: skip
def test_what_is_listed_is_found(sentence):
    assert _found(f"# Title\n\n{sentence}\n")


@pytest.mark.parametrize("sentence", [
    "There is no key that it sees.",
    "It is no longer needed, and no more than 3 are read.",
    "The text ended. We know how many keys there are.",
    "`shall` and ```shall``` are code; $shall$ is a formula.",
    "```\nshall\n```",
    "log log n stands twice on purpose.",
    "marshall, shallow",
])  # fmt: skip
def test_other_sentences_are_not(sentence):
    assert _found(f"# Title\n\n{sentence}\n") == []


def test_a_word_that_stands_twice_is_found_across_lines():
    assert _found("one of the\nthe keys") == [(1, "the\nthe")]
    assert _found("the key, the value") == []


def test_docstrings_messages_and_comments_are_read_and_examples_are_not():
    text = '''
def f():
    """It shall run.

    >>> "this shall not count"
    'this shall not count'
    """
    raise ValueError(f"{f} shall stop")  # what shall it do
'''
    assert [line for line, _ in _found(text, "python")] == [3, 8, 8]


def test_every_rule_says_what_to_write_instead():
    listed = (ROOT / "docs" / "prose.toml").read_text(encoding="utf-8")
    assert listed.count('= ""') == 0
