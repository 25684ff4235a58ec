from pathlib import Path

import pytest

from attentropy.scans.loading.names import name_of

HASH = "0a1b2c3d4e5f60718293a4b5c6d7e8f901234567"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/m/all-MiniLM-L6", "all-MiniLM-L6"),
        ("/m/all-MiniLM-L6/model", "all-MiniLM-L6"),
        ("/m/gpt/pytorch_model", "gpt"),
        ("/m/gpt/model/final", "gpt"),
        (f"/hub/models--owner--tiny/snapshots/{HASH}", "tiny"),
        (f"/hub/models--gpt2/snapshots/{HASH}", "gpt2"),
        ("/runs/small/checkpoint-500", "small/checkpoint-500"),
        ("/m/SmolLM2/model.gguf", "SmolLM2"),
        ("/m/SmolLM2-135M.Q4_1.gguf", "SmolLM2-135M.Q4_1.gguf"),
        ("/model", "model"),
    ],
)
def test_the_nearest_telling_name(path, name):
    assert name_of(Path(path)) == name
