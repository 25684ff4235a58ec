import numpy as np
import pytest
import torch

import attentropy as at
from attentropy.core.errors import ArgumentTypeError
from attentropy.scans.errors import ScanError
from attentropy.scans.measuring import lengths
from tests.report.synthetic import make_scan
from tests.scans import tiny


def model(trained=None, maximum=None):
    about = make_scan(layers=1, heads=1).model
    about.trained_length, about.maximum_length = trained, maximum
    return about


def test_checking_and_its_refusals():
    assert lengths.check((64, 128, 256)) == [64, 128, 256]
    assert lengths.check(range(2, 5)) == [2, 3, 4]
    found = lengths.check(np.array([64, 128]))
    assert found == [64, 128]
    assert {type(length) for length in found} == {int}
    for wrong in ([0], [-4, 8]):
        with pytest.raises(ScanError, match="^lengths must be positive, got"):
            lengths.check(wrong)
    for wrong in ([128, 64], [64, 64], [1, 2], []):
        with pytest.raises(ScanError, match="^lengths must increase and be 2 or more, got"):
            lengths.check(wrong)
    for wrong in ("64", ["64"], [1.5, 2.5], [True, 2], 64, None):
        with pytest.raises(ArgumentTypeError, match="^lengths must be a list of integers, got"):
            lengths.check(wrong)


@pytest.mark.parametrize(
    ("trained", "maximum", "tokens", "expected"),
    [
        (128, None, 10_000, [64, 128, 256, 512]),
        (128, 300, 10_000, [64, 128, 256]),
        (100, None, 10_000, [64, 100, 128, 256]),
        (128, None, 200, [64, 128]),
        (None, None, 10_000, [64, 128, 256]),
        (8, None, 10_000, [8]),
        (4, None, 3, [3]),
    ],
)
def test_default_reaches_four_times_the_trained_length(trained, maximum, tokens, expected):
    assert lengths.default(model(trained, maximum), tokens) == expected


def test_a_text_of_one_token_is_too_short():
    with pytest.raises(ScanError, match="the text is too short: it has 1 token$"):
        lengths.default(model(128), 1)


def test_limits_are_named_and_the_others_go_on():
    kept, skipped = lengths.usable([64, 128, 512], model(maximum=100), 400)
    assert kept == [64]
    assert [(s.length, s.reason) for s in skipped] == [
        (128, "the model takes at most 100 tokens"),
        (512, "the model takes at most 100 tokens"),
    ]
    _, skipped = lengths.usable([64, 512], model(), 400)
    assert skipped[0].reason == "the text has only 400 tokens"
    with pytest.raises(
        ScanError, match="none of lengths can be measured: 512: the model takes at most"
    ):
        lengths.usable([512], model(maximum=100), 4000)


@pytest.mark.parametrize("length", [3, 8, 50, 100])
def test_windows_cover_the_same_text_at_every_length(length):
    ids = torch.arange(1000)
    text = lengths.Windows.of(ids, [3, 8, 50, 100], batch=4)
    assert (text.budget, text.room) == (1000, 400)
    rows = torch.cat(list(text.cut(length)))
    assert rows.shape[1] == length
    assert torch.equal(rows.flatten(), ids[: 1000 // length * length])
    assert all(part.numel() <= 400 for part in text.cut(length))


def test_a_long_text_is_read_as_far_as_is_enough():
    ids = torch.zeros(100_000, dtype=torch.int64)
    assert lengths.Windows.of(ids, [64], batch=4).budget == lengths.ENOUGH
    assert lengths.Windows.of(ids, [64, 8192], batch=4).budget == 4 * 8192


@pytest.mark.parametrize("length", [7, 64, 1000])
def test_no_more_is_read_than_the_budget(length):
    ids = torch.arange(100_000)
    text = lengths.Windows.of(ids, [7, 64, 1000], batch=2)
    assert text.budget == lengths.ENOUGH
    rows = torch.cat(list(text.cut(length)))
    assert torch.equal(rows.flatten(), ids[: lengths.ENOUGH // length * length])


def test_a_scan_reads_its_budget_at_every_length():
    model, read = tiny.make(), []
    model.register_forward_pre_hook(lambda _, ids: read.append(tuple(ids[0].shape)))
    tokens = torch.randint(0, 256, (4 * lengths.ENOUGH,))
    at.scan(model, tokens, lengths=[48, 64], batch=4)
    for length in (48, 64):
        total = sum(batch * n for batch, n in read if n == length)
        # whole windows; at the last length one more for maps and three for the text view
        more = 4 * 64 if length == 64 else 0
        assert lengths.ENOUGH - length < total <= lengths.ENOUGH + more
