import numpy as np
import pytest
import torch

import attentropy as at
from attentropy.core.errors import ArgumentTypeError
from attentropy.lab.embedded import load_embedded, sample_bytes
from attentropy.models.progress import ReadingCost, blocks
from attentropy.scans.errors import ScanError
from attentropy.scans.measuring import lengths
from tests.listeners import Heard
from tests.report.synthetic import make_scan
from tests.scans import tiny
from tests.scans.small_llama import llama


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


def test_there_are_passes_for_several_processes_to_share():
    text = lengths.Windows.of(torch.arange(8192), [64, 2048], batch=4)
    assert [len(part) for part in text.cut(64)] == [16] * 8
    assert [len(part) for part in text.cut(2048)] == [1] * 4
    text = lengths.Windows.of(torch.arange(2**16), [64], batch=4, budget=2**16)
    assert [len(part) for part in text.cut(64)] == [4] * 256  # batch is the most


class Clocked(Heard):
    """Time goes by while layers run; each report of progress predicts how long it all takes."""

    def __init__(self, model):
        super().__init__()
        self.now, self.predicted, self.balance = 0.0, [], ReadingCost(model).balance
        for layer in blocks(model):
            layer.register_forward_hook(self.tick, with_kwargs=True)

    def tick(self, layer, args, kwargs, output):
        rows, size = (args[0] if args else kwargs["hidden_states"]).shape[:2]
        cache = kwargs.get("past_key_values")
        keys = size if cache is None else cache.get_seq_length()
        self.now += rows * size * (1 + (2 * keys - size) / self.balance)

    def advance(self, work):
        super().advance(work)
        if self.done > 0.03 * self.total:
            each = self.now / self.done
            possible = each * self.possible[0]
            self.predicted.append((each * self.total, each * self.total + possible))


def clocked_scan(model, ids, **options):
    heard = Clocked(model)
    return at.scan(model, ids, listener=heard, **options), heard


def errors(predicted, truth):
    return [value / truth for value in predicted]


def test_a_model_that_turns_out_healthy_takes_as_long_as_was_said():
    ids = torch.randint(97, (768,), generator=torch.Generator().manual_seed(1))
    found, heard = clocked_scan(llama(), ids, lengths=[32, 64, 128], trained=64)
    assert found.verdict.state == "healthy"
    sure = errors([one for one, _ in heard.predicted], heard.now)
    assert min(sure) > 0.75
    assert max(sure) < 1.35
    assert heard.possible == (0, "")
    assert heard.done == heard.total


@pytest.mark.slow
def test_a_model_that_breaks_takes_what_was_certain_and_what_was_possible():
    ids = torch.tensor(list(sample_bytes()[:2048]))
    found, heard = clocked_scan(load_embedded(), ids, lengths=[1024], batch=2)
    assert found.verdict.state == "breaks"
    both = errors([two for _, two in heard.predicted], heard.now)
    assert min(both) > 0.7
    assert max(both) < 1.4
    assert heard.done == heard.total


def test_calibration_is_part_of_the_work():
    ids = torch.randint(97, (512,), generator=torch.Generator().manual_seed(1))
    found, heard = clocked_scan(llama(), ids, lengths=[64, 128], trained=64, calibrate=True)
    assert found.plan is not None
    sure = errors([one for one, _ in heard.predicted], heard.now)
    assert min(sure) > 0.7
    assert max(sure) < 1.4
    assert heard.done == heard.total


@pytest.mark.parametrize("trained", [None, 256])
def test_nothing_may_come_where_nothing_beyond_is_judged(trained):
    ids = torch.randint(256, (512,), generator=torch.Generator().manual_seed(1))
    small = tiny.make().eval()
    small.trained_length = trained
    _, heard = clocked_scan(small, ids, lengths=[32, 64])
    assert heard.possible == (0, "")
    assert heard.done == heard.total
