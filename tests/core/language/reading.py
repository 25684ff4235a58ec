"""What is left of English in a text that should be Chinese."""

import re

import pytest

# names, symbols and words that Chinese texts on the subject write in Latin letters
_LATIN = """
attentropy logit logits softmax tanh relu ReLU log exp lse sdpa triton torch fused streaming
cuda cpu NaN nan inf max min cos dropout LayerNorm YaRN NTK LogLengthFrom
LogLength HoldEntropy position_ids tokenizer Parquet Monitor
Python JavaScript English FlexAttention cuDNN flash
attention transformers Triton pickle hub npy pyarrow
json csv parquet html list factory package module scan text Ctrl beta gamma sqrt
clip torchrun sum MiB scores theory noise scales extend
"""
LATIN = frozenset(_LATIN.split())
# What may lack a translation: little, so that another's new sentence can land before its Chinese
# does; and in the slow tier nothing.
NEARLY = (0.05, pytest.param(0.0, marks=pytest.mark.slow))
_WORD = re.compile(r"[A-Za-z][A-Za-z_]{2,}")
_CODE = re.compile(
    r"`[^`]*`|--[a-z-]+|\S*[/.=:\[][A-Za-z]\S*|\S+\.(?:json|html|npy|md|csv)|\(\S+\)|[\w.]*\d[\w.]*"
)


def english(text, names=()):
    """Words of three letters and more that are neither names nor code.

    >>> english("第 3 层 of logit"), english("see it")
    ([], ['see'])
    """
    rest = _CODE.sub(" ", text)
    words = [word for word in _WORD.findall(rest) if not word.isupper() and "_" not in word]
    return [word for word in words if word not in LATIN and word not in names]
