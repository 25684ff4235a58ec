"""One length measured: against dense weights computed by the eager model itself."""

import math

import pytest
import torch

import attentropy as at
from attentropy.core.statistics import NAMES
from attentropy.scans.measuring import measure as module
from attentropy.scans.measuring.measure import forward_rows, measure
from tests.rows import head_row
from tests.scans.small_llama import llama


@pytest.fixture(scope="module")
def pair():
    """Two batches through a llama, measured, and its own attention weights [L,B,H,n,n]."""
    model = llama()
    ids = torch.randint(97, (5, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        output = model(ids, output_attentions=True, labels=ids)
    weights = torch.stack(output.attentions).double()
    model.set_attn_implementation("sdpa")
    both = measure(model, ids.split(3))
    found = both.measure
    torch.testing.assert_close(both.losses.double().mean().float(), output.loss)
    return found, weights, output


def dense(weights, name):
    """The statistic per head from weights, over rows that had a choice."""
    p = weights[..., 1:, :]
    n = torch.arange(2, weights.shape[-1] + 1).double()
    h = torch.special.entr(p).sum(-1)
    c = p.square().sum(-1)
    rows = {
        "entropy": h,
        "normalized_entropy": h / n.log(),
        "perplexity": h.exp(),
        "density": 1 / (n * c).sqrt(),
        "top_probability": p.amax(-1),
        "gradient_flow": 1 - c,
        "noise_robustness": 1 / ((math.e - 1) * c).sqrt(),
        "sink_mass": p[..., 0],
        "previous_share": weights.diagonal(-1, -2, -1),
        "deficit": n.log() - h,
    }
    return rows[name].mean((1, 3)).tolist()


@pytest.mark.parametrize(
    "name",
    [
        "entropy",
        "normalized_entropy",
        "perplexity",
        "density",
        "top_probability",
        "gradient_flow",
        "noise_robustness",
        "sink_mass",
        "previous_share",
        "deficit",
    ],
)
def test_statistics_equal_those_of_eager_attentions(pair, name):
    found, weights, _ = pair
    for got, expected in zip(found.table(name), dense(weights, name), strict=True):
        assert got == pytest.approx(expected, abs=1e-4)


def test_loss_is_that_of_the_model(pair):
    found, _, output = pair
    assert found.loss == pytest.approx(float(output.loss), abs=1e-5)
    assert found.perplexity == pytest.approx(math.exp(float(output.loss)), rel=1e-5)


def test_profile_is_the_mean_over_sequences_of_each_bin(pair):
    found, weights, _ = pair
    profile = found.profiles[0]
    assert len(profile.positions) == module.BINS
    entropy = torch.special.entr(weights).sum(-1)[0].mean(0)  # [H, n]
    place = torch.arange(40) * module.BINS // 40
    for index in (1, 7, 23):
        expected = entropy[:, place == index].mean(-1).tolist()
        got = [profile.entropy[head][index] for head in range(6)]
        assert got == pytest.approx(expected, abs=1e-4)
        assert profile.visible[index] == pytest.approx(
            float((place == index).nonzero().double().mean()) + 1
        )


def test_rows_say_where_they_are(pair):
    rows = pair[0].rows
    assert [(row.index, row.head) for row in rows] == [(i, h) for i in (0, 1) for h in range(6)]
    assert {row.layer for row in rows} == {f"model.layers.{i}.self_attn" for i in (0, 1)}
    assert all(row.causal and row.kind == "self" and row.head_dim == 8 for row in rows)
    assert {row.rows for row in rows} == {5 * 39}


def test_rows_are_those_of_a_watch_to_the_last_digit(pair):
    ids = torch.randint(97, (5, 40), generator=torch.Generator().manual_seed(1))
    model = llama()
    model.set_attn_implementation("sdpa")
    with torch.no_grad(), at.watch(model, keep="rows") as w:
        for part in ids.split(3):
            model(part, use_cache=False)
    for row, want in zip(pair[0].rows, w.heads(), strict=True):
        assert [row[name] for name in NAMES] == pytest.approx(
            [want[name] for name in NAMES], rel=1e-12, nan_ok=True
        )


def test_places_are_numbered_without_the_steps_of_generation():
    rows = [
        head_row(layer="a", index=0),
        head_row(layer="a", index=1, phase="step"),
        head_row(layer="b", index=2),
    ]
    assert [(row.layer, row.index) for row in forward_rows(rows)] == [("a", 0), ("b", 1)]


def test_an_encoder_has_statistics_and_no_perplexity():
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    model = BertModel(config).eval()
    both = measure(model, [torch.randint(50, (2, 20))])
    assert both.losses is None
    found = both.measure
    assert found.loss_by_position == []
    assert found.perplexity is None
    assert not found.rows[0].causal
    assert set(found.profiles[0].visible) == {20.0}
