"""Special tokens of real tokenizers, and texts that are none."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from attentropy.scans.loading.special import special_of, weaknesses

VOCABULARY = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "text": 4}


def tokenizer(template=None):
    made = Tokenizer(models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if template:
        made.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]")


@pytest.mark.parametrize(
    ("template", "begin", "end", "words"),
    [("[CLS] $A [SEP]", (1,), (2,), "Every window begins with [CLS] and ends with [SEP]"),
     ("[CLS] $A", (1,), (), "Every window begins with [CLS], as the tokenizer adds them"),
     (None, (), (), "The tokenizer adds no special tokens, and none were added")],
)  # fmt: skip
def test_what_a_tokenizer_adds(template, begin, end, words):
    found = special_of(tokenizer(template))
    assert (found.begin, found.end, found.unknown) == (begin, end, 0)
    assert found.words.startswith(words)


def test_unknown_and_repeated_tokens_are_warned_of():
    (unknown,) = weaknesses(torch.tensor([0, 0, 0, 3]), 0)
    assert unknown.startswith("75% of the tokens are unknown to the tokenizer")
    (same,) = weaknesses(torch.tensor([7, 7, 7, 3]), 0)
    assert same.startswith("75% of the tokens are the same one (7)")
    assert weaknesses(torch.arange(10), 0) == []
    assert weaknesses(torch.arange(10), None) == []
