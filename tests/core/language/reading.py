"""What is left of English in a text that should be Chinese."""

import re

# names, symbols and words that Chinese texts on the subject write in Latin letters
_LATIN = """
attentropy logit logits softmax tanh relu ReLU log exp lse sdpa triton torch fused streaming
cuda cpu NaN nan inf max min cos dropout LayerNorm YaRN NTK LogLengthFrom
LogLength HoldEntropy position_ids tokenizer Parquet Monitor
Python JavaScript English FlexAttention cuDNN flash
attention transformers pickle hub npy pyarrow
json csv parquet html list factory package module scan text Ctrl beta gamma sqrt
MiB scores theory noise scales extend
"""
LATIN = frozenset(_LATIN.split())
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
