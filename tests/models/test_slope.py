"""One slope for diagnose() and for scans: against the text, or against what a window shows."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import attentropy as at
from attentropy.models.slope import Slope, slopes
from tests.rows import head_row
from tests.scans.tiny import Tiny

KEY = ("layers.0.attn", 0, 0)


def seen(n, window=None):
    """The mean number of visible keys over causal rows that had a choice."""
    counts = [min(i, window or n) for i in range(2, n + 1)]
    return sum(counts) / len(counts)


def course(lengths, entropy, *, window=None, **more):
    return [
        head_row(length=n, visible=seen(n, window), entropy=entropy(n), **more) for n in lengths
    ]


@given(
    st.floats(-3, 3),
    st.floats(-5, 5),
    st.lists(st.integers(4, 9000), min_size=2, max_size=6, unique=True),
)
def test_a_straight_line_against_log_n_gives_its_slope(gain, start, lengths):
    found = slopes(course(lengths, lambda n: start + gain * math.log(n)))[KEY]
    assert found.against == "length"
    assert found.value == pytest.approx(gain, abs=1e-6)


def test_it_is_the_least_squares_of_numpy():
    lengths = [64, 100, 256, 1000]
    entropies = dict(zip(lengths, (1.0, 1.7, 1.2, 2.0), strict=True))
    found = slopes(course(lengths, entropies.get))[KEY]
    want = np.polyfit(np.log(lengths), list(entropies.values()), 1)[0]
    assert found.value == pytest.approx(want, rel=1e-9)


def test_rows_without_a_number_are_left_out_and_one_length_has_no_slope():
    rows = course([64, 128, 256], lambda n: math.nan if n == 128 else 1.0)
    assert slopes(rows)[KEY] == Slope(0.0, "length")
    assert slopes(rows[:2])[KEY] == slopes(rows[1:2])[KEY] == Slope(None, "length")
    assert slopes([]) == {}
    steps = course([64, 128], float, phase="step")
    assert slopes([*course([64], lambda n: 1.0), *steps])[KEY] == Slope(None, "length")


def test_full_attention_is_never_taken_for_a_window():
    for causal in (True, False):
        for pair in ((2, 3), (3, 4), (10, 11), (64, 4096)):
            rows = [
                head_row(length=n, visible=seen(n) if causal else float(n), causal=causal)
                for n in pair
            ]
            assert slopes(rows)[KEY].against == "length"


def test_a_window_is_measured_against_the_keys_that_it_shows():
    rows = course([16, 64, 256], lambda n: math.log(seen(n, 64)), window=64)
    assert slopes(rows)[KEY] == Slope(pytest.approx(1.0), "visible")
    # beyond the window there is nothing to measure against
    rows = course([256, 512, 1024], lambda n: math.log(seen(n, 64)), window=64)
    assert slopes(rows)[KEY] == Slope(None, "visible")


class Windowed(Tiny):
    """Tiny, every layer of which sees 64 keys."""

    def forward(self, ids):
        at_, own = torch.arange(ids.shape[1]), torch.arange(ids.shape[1])[:, None]
        mask = (at_ <= own) & (own - at_ < 64)
        x = self.embedding(ids)
        for layer in self.layers:
            parts = layer.mixed(x).chunk(3, -1)
            q, k, v = (part.unflatten(-1, (layer.heads, -1)).transpose(1, 2) for part in parts)
            x = x + F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)
        return self.head(x)


def rows_at(model, lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(256, (2, max(lengths)), generator=generator)
    found = []
    for n in lengths:
        with torch.no_grad(), at.watch(model) as w:
            model(ids[:, :n])
        found += w.heads()
    return found


def sharp(model):
    """Scores of spread one and more, so that no head counts as uniform."""
    with torch.no_grad():
        for layer in model.layers:
            layer.mixed.weight.mul_(2)
    return model.eval()


LENGTHS = [[64, 128, 256, 512], [16, 32, 64, 128, 256], [64, 80], [128, 1024]]


@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_sliding_window_is_not_called_blurring(lengths):
    for seed in range(10):
        torch.manual_seed(seed)
        rows = rows_at(sharp(Windowed()), lengths, seed)
        assert [f.name for f in at.diagnose(rows) if "blurring" in f.name] == []
        assert {slope.against for slope in slopes(rows).values()} == {"visible"}


def test_the_same_scores_without_a_window_are_called_blurring():
    for seed in range(10):
        torch.manual_seed(seed)
        rows = rows_at(sharp(Tiny()), LENGTHS[0], seed)
        assert [f.name for f in at.diagnose(rows)] == ["entropy grows with length"]


def test_diagnose_and_scan_use_the_same_slope():
    torch.manual_seed(0)
    model = sharp(Tiny())
    ids = torch.randint(256, (600,), generator=torch.Generator().manual_seed(1))
    scan = at.scan(model, ids, lengths=[16, 64, 256])
    found = slopes(row for measure in scan.measures for row in measure.rows)
    assert [slope for layer in scan.slopes for slope in layer] == list(found.values())
    assert [f.name for f in scan.findings] == ["entropy grows with length"]
