"""token_losses against float64 losses of one whole pass; truncation against single windows."""

import pytest
import torch

from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.models.losses.tokens import next_token_losses, token_losses, truncated_losses
from scans.small_llama import llama
from scans.tiny import Tiny


@pytest.fixture(scope="module")
def model():
    return llama().double()


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(97, (2, 75), generator=torch.Generator().manual_seed(1))


def oracle(model, tokens, **options):
    """-log softmax by hand, in one pass without a cache."""
    with torch.no_grad():
        p = torch.softmax(model(tokens, use_cache=False, **options).logits.double(), -1)
    return -p[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0].log()


@pytest.mark.parametrize("chunk", [1, 7, 74, 75, 1024])
def test_pieces_give_the_losses_of_one_pass(model, tokens, chunk):
    found = token_losses(model, tokens, chunk=chunk)
    assert found.dtype == torch.float32
    assert found.shape == (2, 74)
    torch.testing.assert_close(found.double(), oracle(model, tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunk", [9, 1024])
def test_positions_that_jump_stay_one_text(model, tokens, chunk):
    places = torch.arange(75) + 1000 * (torch.arange(75) >= 30)
    seen = torch.ones(2, 75, dtype=torch.long)
    options = {"position_ids": places.expand(2, -1), "attention_mask": seen}
    found = token_losses(model, tokens, positions=places, chunk=chunk)
    torch.testing.assert_close(
        found.double(), oracle(model, tokens, **options), atol=1e-5, rtol=1e-5
    )
    other = tokens.clone()
    other[:, 3] = (other[:, 3] + 1) % 97  # what stands before the jump is seen after it
    changed = token_losses(model, other, positions=places, chunk=chunk)
    assert (changed[:, 35:] - found[:, 35:]).abs().max() > 1e-6


def test_a_model_without_a_cache_reads_at_once():
    torch.manual_seed(0)
    model = Tiny()
    ids = torch.randint(256, (3, 50))
    with torch.no_grad():
        wanted = -model(ids)[:, :-1].double().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    torch.testing.assert_close(
        token_losses(model, ids, chunk=8).double(), wanted, atol=1e-5, rtol=0
    )


def test_few_logits_are_float32_at_a_time(monkeypatch):
    widest = []
    plain = torch.Tensor.float

    def counted(self, *args, **kwargs):
        widest.append(self.numel())
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "float", counted)
    logits = torch.randn(2, 300, 11, dtype=torch.bfloat16)
    found = next_token_losses(logits, torch.zeros(2, 300, dtype=torch.long))
    assert max(widest) == 128 * 11
    wanted = -logits.double().log_softmax(-1)[..., 0]
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("last", [1, 5, 16, 40, 74])
def test_truncation_predicts_each_token_from_a_window(model, tokens, last):
    found = truncated_losses(model, tokens, trained=32, last=last)
    assert found.shape == (2, last)
    step, end = min(last, 16), 75
    windows = []
    while end > 75 - last:
        part = oracle(model, tokens[:, max(0, end - 32) : end])
        windows.insert(0, part[:, -min(step, end - 75 + last) :])
        end -= step
    torch.testing.assert_close(found.double(), torch.cat(windows, 1), atol=1e-5, rtol=1e-5)


def test_bad_arguments_are_named(model, tokens):
    with pytest.raises(ArgumentError, match=r"tokens must be integers \[B, N\] with N at least 2"):
        token_losses(model, tokens[0])
    with pytest.raises(ArgumentError, match="chunk must be an integer >= 1, got 0"):
        token_losses(model, tokens, chunk=0)
    with pytest.raises(ArgumentError, match=r"positions must be of shape \[75\] or \[2, 75\]"):
        token_losses(model, tokens, positions=torch.arange(3))
    with pytest.raises(ArgumentError, match="last must be between 1 and 74, got 75"):
        truncated_losses(model, tokens, trained=32, last=75)
    with pytest.raises(UnsupportedError, match="takes position_ids, not Tiny"):
        token_losses(Tiny(), tokens, positions=torch.arange(75))


def test_an_encoder_has_no_losses():
    class Encoder(torch.nn.Module):
        def forward(self, ids):
            return torch.zeros(*ids.shape, 4)

    with pytest.raises(UnsupportedError, match="Encoder gives no logits of the next token"):
        token_losses(Encoder(), torch.full((1, 5), 9))
