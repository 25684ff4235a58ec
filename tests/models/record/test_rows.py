import math

import pytest
import torch

import attentropy as at
from attentropy.core.errors import AttentropyError
from attentropy.core.statistics import NAMES, TABLE
from attentropy.models.record.rows import from_json, table, to_json
from tests.models.test_watch import CAUSAL, Model
from tests.rows import head_row


@pytest.fixture
def watched():
    torch.manual_seed(0)
    model = Model()
    with at.watch(model) as w:
        model(torch.randn(1, 11, 32), CAUSAL)
    return w


def test_rows_survive_json(watched):
    assert from_json(watched.to_json()) == watched.heads()
    odd = [head_row(entropy=math.nan, max_logit=math.inf)]
    (again,) = from_json(to_json(odd))
    assert math.isnan(again.entropy)
    assert math.isnan(again.max_logit)  # a file holds null for whatever is not finite


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "this text is not JSON"),
        ("{}", "this text is not a file of attentropy.rows"),
        ('{"format": "attentropy.rows", "version": 9}', "version 9 of attentropy.rows"),
        ('{"format": "attentropy.rows", "version": 2}', "missing required field `rows`"),
        ('{"format": "attentropy.rows", "version": 2, "rows": [{"a": 1}]}', r"\$.rows\[0\]"),
    ],
)
def test_other_texts_are_refused(text, message):
    with pytest.raises(AttentropyError, match=message):
        from_json(text)


def test_frame_has_a_column_for_every_field(watched):
    pytest.importorskip("pandas")
    frame = watched.frame()
    assert len(frame) == 8
    assert list(frame.columns) == watched.heads()[0].keys()
    assert set(NAMES) < set(frame.columns)
    assert frame["entropy"].tolist() == [row.entropy for row in watched.heads()]


def test_table_shows_the_columns_of_the_table_of_statistics(watched):
    shown = watched.table()
    titles = [one.column for one in TABLE.values() if one.column]
    assert [column.header for column in shown.columns] == ["layer", "head", *titles]
    assert shown.row_count == 8
    printed = str(shown).splitlines()
    assert [line.split()[0] for line in printed[2:]] == [row.layer for row in watched.heads()]
    assert str(table([head_row(entropy=1.23456)])).splitlines()[-1].split()[2] == "1.23"


def test_twins_are_the_most_similar_heads_of_a_layer(watched):
    for row in watched.heads():
        assert 0 <= row.twin < 4
        assert row.twin != row.head
        assert 0 < row.likeness <= 1 + 1e-9


def test_derived_means_follow_from_the_others(watched):
    n = torch.arange(2.0, 12.0, dtype=torch.float64)
    for row in watched.heads():
        assert row.mean_logit == pytest.approx(row.lse - row.entropy)
        assert row.gradient_flow == pytest.approx(1 - row.collision)
        assert row.deficit == pytest.approx(n.log().mean().item() - row.entropy)
