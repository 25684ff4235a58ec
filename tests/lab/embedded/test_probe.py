import math

import pytest
import torch
import torch.nn.functional as F

from attentropy.core.errors import ArgumentError
from attentropy.core.scales import HoldEntropy, LogLengthFrom
from attentropy.lab.embedded import EmbeddedModel, load_embedded, probe, sample_bytes
from attentropy.lab.embedded.model import ModelShape


@pytest.fixture(scope="module")
def model():
    return load_embedded()


@pytest.fixture(scope="module")
def heads(model):
    return probe.head_profile(model, probe.repeats(sample_bytes(), 128)[:, :-1])


SMALL = ModelShape(layers=2, heads=2, width=16, rotary_heads=1)


def test_head_profile_against_dense_float64():
    torch.manual_seed(1)
    model = EmbeddedModel(SMALL).eval()
    rows = torch.randint(256, (2, 131))
    queries = []
    with probe.intercepted(model, lambda layer, q, k: queries.append((q, k)) or q):
        model(rows)
    found = probe.head_profile(model, rows)
    for layer, (q, k) in enumerate(queries):
        s = q.double() @ k.double().transpose(2, 3) / SMALL.head_dim**0.5
        hidden = torch.ones(131, 131, dtype=torch.bool).triu(1)
        p = s.masked_fill(hidden, -torch.inf).softmax(-1)[:, :, -64:]
        places = torch.arange(67, 131)
        for distance, got in ((1, found.previous), (64, found.induction)):
            share = p[:, :, torch.arange(64), places - distance].mean((0, 2))
            torch.testing.assert_close(got[layer].double(), share, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            found.first[layer].double(), p[..., 0].mean((0, 2)), rtol=1e-5, atol=1e-6
        )
        spread = torch.stack([s[:, :, i, : i + 1].var(-1, correction=0) for i in places], -1)
        torch.testing.assert_close(
            found.spread[layer].double(), spread.mean((0, 2)).sqrt(), rtol=1e-5, atol=1e-6
        )


def test_head_profile_refuses_short_rows(model):
    with pytest.raises(ArgumentError, match="rows must be at least 128 bytes long, got 100"):
        probe.head_profile(model, torch.zeros(1, 100, dtype=torch.long))


def test_rules_are_the_scales_of_the_library_over_the_trained_one(model):
    n = torch.tensor([1.0, 2.0, 127.0, 128.0, 16384.0])
    factors = probe.steered_by(model, LogLengthFrom(128))(0, n)
    torch.testing.assert_close(factors, torch.tensor([1.0, 1, 1, 1, 2]))
    each = [HoldEntropy(128, (1.0, 2.0, 3.0, float(layer + 1))) for layer in range(5)]
    held = probe.steered_by(model, *each)(4, n)
    expected = [math.sqrt(1 + 2 * math.log(128) / spread**2) for spread in (1, 2, 3, 5)]
    torch.testing.assert_close(held[:, -1], torch.tensor(expected))
    with pytest.raises(ArgumentError, match="scales must be 1 or 5 in number, got 2"):
        probe.steered_by(model, *each[:2])


def test_interception_is_undone_after_an_error(model):
    plain = F.scaled_dot_product_attention
    with pytest.raises(ZeroDivisionError), probe.intercepted(model, lambda *_: 1 / 0):
        model(torch.zeros(1, 3, dtype=torch.long))
    assert F.scaled_dot_product_attention is plain


def test_count_losses_of_a_text_with_two_letters():
    unigram, bigram = probe.count_losses(b"ab" * 50000, b"ab" * 50)
    assert unigram == pytest.approx(math.log(2), abs=0.01)
    assert bigram == pytest.approx(0.0, abs=0.01)


def test_windows_of_every_length_end_at_the_same_bytes():
    data = bytes(range(256)) * 8
    short, long = (probe.windows(data, n, count=5) for n in (128, 1024))
    assert torch.equal(short, long[:, -129:])
    assert long[-1, -1] == 255
    twice = probe.repeats(data, 128, count=5)
    assert torch.equal(twice[:, :64], twice[:, 64:128])
    assert twice.shape == (5, 129)


def test_has_induction_previous_byte_and_sink_heads(heads):
    assert heads.induction.max() > 0.3, "looks at what followed the same bytes before"
    assert heads.previous.max() > 0.45, "looks at the previous byte"
    assert heads.first.max() > 0.3, "rests on the first key"


def test_copies_what_it_read_before(model):
    plain, repeated = (f(model, sample_bytes(), 128) for f in (probe.text_loss, probe.copy_loss))
    assert repeated < 0.4 * plain


@pytest.mark.parametrize("loss", [probe.text_loss, probe.copy_loss])
def test_length_blurs_and_a_scale_rule_mends(model, loss):
    trained, long = (loss(model, sample_bytes(), n, count=16) for n in (128, 1024))
    mended = loss(
        model, sample_bytes(), 1024, count=16, rule=probe.steered_by(model, LogLengthFrom(128))
    )
    assert long > trained + 0.1
    assert long - mended > 0.5 * (long - trained)


def test_entropy_grows_with_length_and_the_rule_holds_it(model):
    def entropy(n, rule=None):
        rows = probe.windows(sample_bytes(), n, count=8)[:, 1:]
        return probe.head_profile(model, rows, rule).entropy.mean().item()

    short, long, held = (
        entropy(128),
        entropy(1024),
        entropy(1024, probe.steered_by(model, LogLengthFrom(128))),
    )
    assert long > short + 0.5
    assert long - held > 0.4 * (long - short)
