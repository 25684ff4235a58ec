"""Where the loss of a model with a known disease breaks."""

import math

import pytest
import torch

from attentropy.models.losses.paired import paired
from attentropy.scans.judging.breaks import Beyond, breaks_at, is_rise, rise, stretch_means
from attentropy.scans.measuring.lengths import Windows
from models.losses.diseases import TRAINED, Sick, text
from tests.report.synthetic import make_scan


def beyond(model, length=256, rows=6, **special):
    windows = Windows.of(text(1, rows * length)[0], [length], batch=2, **special)
    return Beyond(model, windows, length, trained=TRAINED, whole=None)


def test_it_breaks_where_the_disease_begins():
    found = beyond(Sick(distance=0.5))
    excess = found.excess()
    assert (excess[0].start, excess[-1].stop) == (TRAINED, 256)
    later = [one.change.difference for one in excess[1:]]  # token 64 is predicted at position 63
    assert later == pytest.approx([0.5] * len(later), abs=0.02)
    assert found.noticed_at() == TRAINED
    assert found.why().name == "distance"


def test_a_healthy_model_does_not_break():
    found = beyond(Sick())
    assert found.noticed_at() is None


def test_a_disease_that_begins_later_is_found_later():
    class Late(Sick):
        def forward(self, ids, position_ids=None, attention_mask=None):
            self.distance = 0.0
            logits = super().forward(ids, position_ids, attention_mask)
            late = torch.arange(ids.shape[1]) >= 150
            flat = torch.zeros_like(logits)
            return torch.where(late[:, None], flat, logits)

    found = beyond(Late())
    assert 110 <= found.noticed_at() <= 160  # a stretch of 64 tokens is looked at


def test_a_rise_soon_after_the_trained_length_began_there():
    assert breaks_at(9728, 8192) == 8192
    assert breaks_at(469, 128) == 469


def test_special_tokens_stay_at_the_beginning_and_out_of_the_end():
    found = beyond(Sick(distance=0.5), begin=(1,), end=(0, 0))
    assert found.rows.shape[1] == 254
    assert set(found.rows[:, 0].tolist()) == {1}
    assert found.past.shape[1] == found.truncated.shape[1] == 254 - TRAINED


def test_stretches_leave_out_tokens_without_a_loss():
    losses = torch.arange(200.0)
    losses[0] = losses[64:100] = torch.nan
    first, second, third = stretch_means(losses)
    assert first == pytest.approx(sum(range(1, 64)) / 63, rel=1e-5)
    assert second is None
    assert third == pytest.approx(sum(range(128, 192)) / 64, rel=1e-5)


def test_a_rise_is_judged_on_the_text_that_both_lengths_read():
    scan = make_scan(lengths=(64, 128, 256))
    for measure, loss in zip(scan.measures, (2.5, 2.0, 2.2), strict=True):
        measure.loss = loss
        measure.stretches = [None, *(loss + 0.01 * math.sin(i * loss) for i in range(30))]
    length, change = rise(scan.measures)
    assert length == 128
    assert change.difference == pytest.approx(0.2, abs=0.01)
    assert change.texts == 30
    assert rise(scan.measures[:2]) is None
    assert rise(scan.measures[:1]) is None


def test_small_rises_and_unsure_ones_do_not_count():
    assert not is_rise(paired([1.0, 2.0, 3.0], [1.02, 2.02, 3.02]))
    assert is_rise(paired([1.0, 2.0, 3.0], [1.1, 2.1, 3.1]))
    assert not is_rise(paired([1.0, 2.0, 3.0], [1.1, 1.8, 3.9]))
