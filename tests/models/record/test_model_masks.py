"""Masks as models write them, against tables made pair by pair in Python."""

import gc
import threading
import weakref

import pytest
import torch

import attentropy as at
from attentropy.core.errors import ArgumentError
from attentropy.core.masks import Extent
from attentropy.core.resolve import Options, resolve
from attentropy.models.record import model_masks
from attentropy.models.record.model_masks import (
    causal_from_end,
    causal_from_start,
    everything,
    from_call,
    from_table,
    read_table,
)

CPU = torch.device("cpu")


def extent(queries, keys=None, batch=1, heads=1):
    return Extent(batch, heads, queries, queries if keys is None else keys, CPU)


def loops(rule, queries, keys):
    return [[bool(rule(i, j)) for j in range(keys)] for i in range(queries)]


def assert_sees(mask, want):
    """`want` [Q][K] of every entry and head."""
    seen = mask.seen.dense()
    assert all(seen[b, h].tolist() == want for b in range(len(seen)) for h in range(seen.shape[1]))
    counts = mask.seen.visible.expand(seen.shape[:3])
    assert counts[0, 0].tolist() == [sum(row) for row in want]


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 5), (3, 7), (7, 3), (1, 6)])
def test_masks_that_are_flags(queries, keys):
    size = extent(queries, keys, batch=2, heads=3)
    shift = keys - queries
    assert_sees(everything(size), loops(lambda i, j: True, queries, keys))
    assert_sees(causal_from_end(size), loops(lambda i, j: j <= i + shift, queries, keys))
    assert_sees(causal_from_start(size), loops(lambda i, j: j <= i, queries, keys))
    assert causal_from_end(size).positions.tolist() == [i + shift for i in range(queries)]
    assert causal_from_start(size).positions.tolist() == list(range(queries))
    assert everything(size, cross=True).positions is None
    assert everything(size).step == causal_from_end(size).step == (queries < keys)


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7), (7, 3), (1, 6), (6, 1), (2, 1)])
def test_a_choice_starts_with_the_first_query_that_sees_two_keys(queries, keys):
    for made in (everything, causal_from_end):
        mask = made(extent(queries, keys))
        counts = mask.seen.visible.expand(1, 1, queries)[0, 0].tolist()
        first = next((i for i in range(queries) if min(counts[i:]) >= 2), None)
        assert mask.choice_from == first


RULES = {
    "triangle": lambda i, j: j <= i,
    "everything": lambda i, j: True,
    "window": lambda i, j: i - 3 < j <= i,
    "ahead": lambda i, j: j <= i + 1,
    "gaps": lambda i, j: j <= i and (i - j) % 2 == 0,
    "strict": lambda i, j: j < i,
}
INTERVALS = {"triangle", "everything", "window", "ahead", "strict"}
WRITTEN = {
    "bool": lambda t: t,
    "integer": lambda t: t.long(),
    "-inf": lambda t: torch.zeros(t.shape).masked_fill(~t, -torch.inf),
    "lowest": lambda t: torch.zeros(t.shape).masked_fill(~t, torch.finfo(torch.float32).min),
    "lowest of bfloat16": lambda t: torch.zeros(t.shape, dtype=torch.bfloat16).masked_fill(
        ~t, torch.finfo(torch.bfloat16).min
    ),
    "-1e9": lambda t: torch.zeros(t.shape).masked_fill(~t, -1e9),
    "-1e4": lambda t: torch.zeros(t.shape).masked_fill(~t, -1e4),
}


# a row that is hidden by finite numbers, as the first of a strict triangle, keeps them
BOTH = [
    (rule, written)
    for rule in RULES
    for written in WRITTEN
    if rule != "strict" or written in ("bool", "integer", "-inf")
]


@pytest.mark.parametrize(("rule", "written"), BOTH)
def test_tables_however_they_are_written(rule, written):
    want = loops(RULES[rule], 6, 6)
    table = torch.tensor(want)
    mask = read_table(WRITTEN[written](table), extent(6))
    assert_sees(mask, want)
    assert mask.seen.is_interval == (rule in INTERVALS)
    assert bool(mask.is_causal) == all(not want[i][j] for i in range(6) for j in range(i + 1, 6))


def test_the_shape_of_a_mask_is_found_again():
    table = torch.tensor(loops(RULES["triangle"], 5, 5))
    assert read_table(table, extent(5)).seen.shape == "causal"
    assert read_table(torch.ones(5, 5, dtype=torch.bool), extent(5)).seen.shape == "full"
    assert read_table(table, extent(5), cross=True).seen.shape == "other"


def test_keys_may_be_hidden_on_either_side():
    real = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [False] * 2 + [True] * 3])
    triangle = torch.ones(5, 5).tril().bool()
    mask = read_table((triangle & real[:, None])[:, None], extent(5, batch=3, heads=2))
    assert mask.seen.is_interval
    assert torch.equal(mask.seen.visible.expand(3, 2, 5)[:, 1], (triangle & real[:, None]).sum(-1))
    assert mask.first.flatten().tolist() == [0, 0, 2]


def test_keys_that_are_hidden_from_all_queries_of_an_encoder():
    real = torch.tensor([[True] * 4, [True, True, False, False]])
    mask = read_table(real[:, None, None], extent(4, batch=2, heads=3))
    assert torch.equal(mask.seen.dense(), real[:, None, None].expand(2, 3, 4, 4))


def test_cross_attention_has_no_positions():
    mask = read_table(torch.rand(1, 1, 3, 5) > 0.5, extent(3, 5), cross=True)
    assert mask.positions is None
    assert mask.cross
    assert not mask.step


@pytest.mark.parametrize("filled", [3, 5, 9])
def test_a_static_cache_ends_with_the_last_key_that_is_seen(filled):
    queries, keys = 3, 9
    want = loops(lambda i, j: j <= i + filled - queries, queries, keys)
    mask = read_table(torch.tensor(want), extent(queries, keys))
    assert_sees(mask, want)
    assert mask.positions.tolist() == [filled - queries + i for i in range(queries)]
    assert mask.step == (filled > queries)
    longer = torch.tensor([row + [False] * 4 for row in want])
    assert_sees(read_table(longer, extent(queries, keys)), want)


def test_a_bias_stays_and_only_minus_infinity_hides():
    bias = torch.tensor([[0.5, -torch.inf, -3.0], [0.0, 0.0, -80.0]])
    mask = read_table(bias, extent(2, 3))
    assert torch.equal(mask.seen.added[0, 0], bias)
    assert_sees(mask, [[True, False, True], [True, True, True]])


def test_a_row_that_finite_numbers_hide_stays_uniform():
    lowest = torch.finfo(torch.float32).min
    table = torch.tensor([[lowest, lowest], [0.0, lowest]])
    mask = read_table(table, extent(2))
    assert mask.seen.added[0, 0].tolist() == [[lowest, lowest], [0.0, -torch.inf]]
    assert mask.seen.visible.flatten().tolist() == [2, 1]
    q = torch.randn(1, 1, 2, 4)
    stats = at.attend(q, q, q, mask=mask.seen.added).stats
    assert stats.entropy[0, 0, 0] == pytest.approx(0.6931, abs=1e-4)


def test_a_mask_that_does_not_fit_is_refused():
    rule = (
        r"attention_mask must be broadcastable to \[B,H,Q,K\] with Q, K = 3, 3, got \[1, 1, 2, 3\]"
    )
    with pytest.raises(ArgumentError, match=rule):
        read_table(torch.ones(2, 3, dtype=torch.bool), extent(3))


def test_a_steered_mask_changes_what_is_seen():
    real = torch.tensor([[False] * 2 + [True] * 3])
    table = torch.ones(5, 5).tril().bool() & real[:, None]
    mask = read_table(table[:, None], extent(5))
    narrow = mask.seeing(mask.seen.meet(at.lookback(2)))
    want = loops(lambda i, j: j <= i < j + 2 and j >= 2, 5, 5)
    assert_sees(narrow, want)
    assert narrow.first.item() == 2
    assert narrow.notes == {}


@pytest.mark.parametrize("given", [at.causal, at.strided(2), torch.rand(4, 4) > 0.3, None])
def test_the_mask_of_a_call_of_attend(given):
    q = torch.randn(2, 3, 4, 8)
    call = resolve(q, q, q, Options(mask=given, bias=torch.randn(4, 4)))
    mask = from_call(call, cross=False)
    assert torch.equal(mask.seen.dense(), call.seen._replace(added=None).dense())
    assert mask.positions.tolist() == [0, 1, 2, 3]
    assert from_call(call, cross=True).positions is None


class TestReadingOnce:
    """The layers of a model share a mask, and what was read from it."""

    table = torch.ones(6, 6).tril().bool() & (torch.arange(6) > 1)

    def test_layers_share_what_was_read(self):
        mask = self.table.clone()
        first = from_table(mask, extent(6))
        assert from_table(mask, extent(6)) is first
        assert from_table(mask, extent(6), cross=True) is not first
        assert from_table(mask, extent(6, batch=2)) is not first
        assert causal_from_end(extent(6)) is causal_from_end(extent(6))

    def test_a_mask_that_was_written_to_is_read_again(self):
        mask = self.table.clone()
        first = from_table(mask, extent(6))
        mask[0, 0] = True
        again = from_table(mask, extent(6))
        assert again is not first
        assert bool(again.seen.dense()[0, 0, 0, 0])

    def test_no_mask_is_kept_alive(self):
        for make in (self.table.clone, lambda: torch.rand(6, 6) > 0.5, lambda: torch.randn(6, 6)):
            mask = make()
            gone = weakref.ref(mask)
            from_table(mask, extent(6))
            del mask
            gc.collect()
            assert gone() is None

    def test_only_a_few_are_kept(self):
        for n in range(2, 2 + 3 * model_masks.KEPT):
            causal_from_end(extent(n))
        assert len(model_masks._plain) <= model_masks.KEPT

    def test_inference_tensors_stay_inside(self):
        with torch.inference_mode():
            inside = causal_from_end(extent(13))
            assert_sees(from_table(self.table.clone(), extent(6)), self.table.tolist())
        outside = causal_from_end(extent(13))
        assert inside.positions.is_inference()
        assert not outside.positions.is_inference()

    def test_fake_tensors_are_not_kept(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            everything(extent(17))
        assert type(everything(extent(17)).positions) is torch.Tensor

    def test_threads_may_read_at_once(self):
        wrong = []

        def read():
            try:
                for n in range(2, 60):
                    assert causal_from_end(extent(n)).seen.extent.queries == n
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_a_compiled_graph_reads_the_same():
    torch._dynamo.reset()
    real = torch.tensor([[True] * 5, [False] * 2 + [True] * 3])
    table = (torch.ones(5, 5).tril().bool() & real[:, None])[:, None]

    def read(table):
        mask = from_table(table, extent(5, batch=2))
        return mask.seen.dense(), mask.first, mask.is_causal, mask.positions

    found = torch.compile(read, backend="eager", fullgraph=True)(table)
    mask = read_table(table, extent(5, batch=2))
    want = mask.seen.dense(), mask.first, mask.is_causal, mask.positions
    for got, right in zip(found, want, strict=True):
        assert torch.equal(got, torch.as_tensor(right))
    torch._dynamo.reset()
