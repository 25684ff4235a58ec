import pytest
import torch

from attentropy.lab.bench import contenders, runner

CASE = contenders.BenchCase(1, 2, 64, 16)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_contenders_are_right(dtype, causal):
    case = CASE._replace(dtype=dtype, causal=causal)
    for name, run in contenders.available(case).items():
        runner.check(name, run, case)


CASES = {
    "full": CASE,
    "causal": CASE._replace(causal=True),
    "window": CASE._replace(causal=True, window=9),
    "one query": CASE._replace(queries=1),
    "window of one query": CASE._replace(queries=3, causal=True, window=9),
}


@pytest.mark.parametrize("name", CASES)
def test_the_table_of_a_case_is_its_mask(name):
    case = CASES[name]
    queries, keys = case.queries or case.length, case.length
    want = [
        [
            not (case.causal or case.window) or 0 <= i + keys - queries - j < (case.window or keys)
            for j in range(keys)
        ]
        for i in range(queries)
    ]
    table = case.table()
    if table is None:
        assert all(all(row) for row in want)
        assert case.mask is None
        return
    assert table.tolist() == want
    drawn = "\n".join("".join("#" if seen else "." for seen in row) for row in want)
    assert case.mask.draw(queries, keys) == drawn


@pytest.mark.parametrize("name", CASES)
def test_eager_is_the_definition(name):
    case = CASES[name]
    q, k, v = case.tensors()
    out, entropy = contenders.eager(q, k, v, case)
    s = q.double() @ k.double().mT / case.width**0.5
    if case.table() is not None:
        s = s.masked_fill(~case.table(), -torch.inf)
    p = s.softmax(-1)
    torch.testing.assert_close(out.double(), p @ v.double(), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(
        entropy.double(), torch.special.entr(p).sum(-1), atol=1e-5, rtol=1e-5
    )


def test_tensors_are_the_same_every_time_and_ask_for_gradients_if_wanted():
    case = CASE._replace(backward=True, dtype=torch.bfloat16, queries=2)
    q, k, v = case.tensors()
    assert [tuple(x.shape) for x in (q, k, v)] == [(1, 2, 2, 16), (1, 2, 64, 16), (1, 2, 64, 16)]
    assert all(x.requires_grad and x.dtype == torch.bfloat16 for x in (q, k, v))
    assert torch.equal(q, case.tensors()[0])


def test_the_dense_contender_is_left_out_where_it_would_not_fit():
    assert "eager" in contenders.available(CASE)
    assert "eager" not in contenders.available(CASE._replace(length=1 << 15))
    assert next(iter(contenders.available(CASE))) == "sdpa"
