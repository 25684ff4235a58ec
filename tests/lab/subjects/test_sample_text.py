import pytest
import torch

from attentropy.core.errors import AttentropyError
from attentropy.lab import embedded
from attentropy.lab.subjects import sample_text


def test_the_text_is_the_sample_byte_by_byte():
    tokens = sample_text.sample_tokens()
    assert tokens.dtype == torch.int64
    assert bytes(tokens.tolist()) == embedded.sample_bytes()


def test_the_model_is_the_embedded_one():
    assert sample_text.has_embedded()
    assert isinstance(sample_text.embedded_model(), embedded.EmbeddedModel)


@pytest.mark.parametrize(
    ("function", "missing", "message"),
    [
        (sample_text.embedded_model, "load_embedded", "this installation has no embedded model"),
        (sample_text.sample_tokens, "sample_bytes", "this installation has no sample text"),
    ],
)
def test_an_installation_without_data_says_so(function, missing, message, monkeypatch):
    def absent():
        raise FileNotFoundError

    monkeypatch.setattr(embedded, missing, absent)
    with pytest.raises(AttentropyError, match=message):
        function()


def test_the_question_looks_at_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(sample_text, "files", lambda _: tmp_path)
    assert not sample_text.has_embedded()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "model.safetensors").touch()
    assert sample_text.has_embedded()
