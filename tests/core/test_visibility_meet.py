"""A visibility that meets a mask shows what both show, by tables made pair by pair."""

import itertools

import pytest
import torch

import attentropy as at
from attentropy.core.masks import Extent
from attentropy.core.visibility import Span, Visibility

CPU = torch.device("cpu")
RULES = {
    "full": (at.full, lambda i, j: True),
    "causal": (at.causal, lambda i, j: j <= i),
    "lookback": (at.lookback(2), lambda i, j: i - j < 2),
    "prefix": (at.prefix(3), lambda i, j: j < 3),
    "strided": (at.strided(2), lambda i, j: (i - j) % 2 == 0),
    "table": (
        at.dense(torch.tensor([[(i * j) % 3 != 1 for j in range(7)] for i in range(5)])),
        lambda i, j: ((i - 2) * j) % 3 != 1,
    ),
}


def extent(queries=5, keys=7):
    return Extent(2, 3, queries, keys, CPU)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(RULES, RULES)))
def test_both_must_show_a_key(first, second):
    (one, rule), (two, other) = RULES[first], RULES[second]
    seen = Visibility.of_mask(one, extent()).meet(two)
    want = [[rule(i + 2, j) and other(i + 2, j) for j in range(7)] for i in range(5)]
    assert seen.dense()[1, 2].tolist() == want
    assert seen.visible.expand(2, 3, 5)[0, 0].tolist() == [sum(row) for row in want]


def test_a_bias_stays_and_the_count_is_made_anew():
    bias = torch.zeros(5, 7).masked_fill(torch.rand(5, 7) > 0.7, -torch.inf)
    seen = Visibility(extent(), added=bias[None, None]).with_visible()
    both = seen.meet(at.causal)
    want = ~bias.isneginf() & torch.ones(5, 7).tril(2).bool()
    assert torch.equal(both.dense()[0, 0], want)
    assert both.visible.expand(2, 3, 5)[1, 1].tolist() == want.sum(-1).tolist()


def test_the_shape_is_known_where_one_part_hides_nothing():
    full, causal = (Visibility.of_mask(m, extent()) for m in (at.full, at.causal))
    assert full.meet(at.full).shape == "full"
    assert full.meet(at.causal).shape == causal.meet(at.full).shape == "causal"
    assert causal.meet(at.causal).shape == "causal"
    assert causal.meet(at.lookback(2)).shape == "other"


def test_a_selection_cannot_meet_a_mask():
    part = Visibility.of_mask(at.causal, extent()).select(Span(queries=slice(1, 3)))
    with pytest.raises(ValueError, match="a selection of rows and keys cannot meet a mask"):
        part.meet(at.full)


def test_a_count_that_is_known_is_not_made_again():
    seen = Visibility.of_mask(at.causal, extent()).with_visible()
    assert seen.with_visible() is seen


def test_sizes_of_a_selection():
    seen = Visibility.of_mask(at.strided(2), extent())
    part = seen.select(Span(batch=slice(1, 9), keys=slice(2, None), queries=torch.tensor([4, 0])))
    assert part.extent[:4] == (1, 3, 2, 5)
    assert torch.equal(part.dense(), seen.dense()[1:, :, [4, 0], 2:])
