import math

import pytest
import torch

from attentropy.lab.experiments import init
from attentropy.lab.harness.results import RunResults
from attentropy.nn.layers.multihead import MultiheadAttention

SMALL = init.InitConfig(
    d_model=32, head_dims=(8, 32), length=64, spreads=(0.1, 1.0), steps=30, train_items=8
)


def test_entropies_are_ordered_by_the_variance_of_the_weights():
    level = {}
    for scheme in init.SCHEMES:
        torch.manual_seed(0)
        rows = RunResults(init.measure(SMALL, scheme, 0))
        assert len(rows) == 4
        level[scheme] = rows.mean("entropy", d_k=8, scale="1/sqrt d")
        theory = rows.mean("theory", d_k=8, scale="1/sqrt d")
        assert level[scheme] == pytest.approx(theory, abs=0.3)
    assert level["he"] < level["xavier"] < level["lecun"] < level["packed"] < level["gpt2"]
    assert level["gpt2"] == pytest.approx(math.log(64), abs=1e-2)


def test_the_numbers_of_a_fresh_layer_are_those_of_its_dense_map():
    layer, x = MultiheadAttention(16, 2), torch.randn(2, 9, 16)
    found = init._fresh(layer, x)
    q, k = (x.double() @ w.double().T for w in (layer.q_weight, layer.k_weight))
    s = torch.stack([a @ b.mT for a, b in zip(q.split(8, -1), k.split(8, -1), strict=True)], 1)
    p = (s / math.sqrt(8)).softmax(-1)
    assert found["entropy"] == pytest.approx(torch.special.entr(p).sum(-1).mean().item(), abs=1e-5)
    assert found["flow"] == pytest.approx(1 - p.square().sum(-1).mean().item(), abs=1e-5)
    assert found["gradient"] > 0


def test_without_the_root_wide_heads_start_saturated():
    torch.manual_seed(0)
    rows = RunResults(init.measure(SMALL, "lecun", 0))
    spread = {s: rows.mean("spread", d_k=32, scale=s) for s in ("1/sqrt d", "1")}
    assert spread["1"] == pytest.approx(math.sqrt(32) * spread["1/sqrt d"], rel=0.15)
    assert rows.mean("entropy", d_k=32, scale="1") < rows.mean("entropy", d_k=32, scale="1/sqrt d")


def test_a_lookup_asks_for_one_of_the_keys():
    q, k, asked = init._lookup(SMALL, torch.Generator().manual_seed(0))
    assert q.shape == (SMALL.batch, 1, SMALL.train_width)
    nearest = torch.cdist(q, k)[:, 0].argmin(-1)
    assert (nearest == asked).float().mean() > 0.9


def test_training_learns_to_look_up():
    rows = RunResults(init.measure(SMALL, "spread", 0))
    assert rows.values("start") == [0.1, 1.0]
    assert rows.mean("accuracy", start=1.0) > 100 / 8
    assert all(row["gradient"] > 0 for row in rows)


def test_the_conclusion_names_the_best_start():
    fresh = [
        {"condition": "xavier", "scheme": "xavier", "seed": 0, "d_k": 8, "scale": scale,
         "entropy": h, "theory": 2.0}
        for scale, h in (("1/sqrt d", 2.25), ("1", 0.5))
    ]  # fmt: skip
    trained = [
        {"condition": "spread", "seed": 0, "start": s, "accuracy": a, "gradient": g}
        for s, a, g in ((0.1, 40.0, 0.2), (1.0, 90.0, 0.9), (8.0, 30.0, 1.5))
    ]
    said = init.conclude(RunResults([*fresh, *trained]))
    assert said[0].startswith(
        "Entropy at initialisation agrees with the Gaussian theory to 0.25 nats"
    )
    assert "at d_k = 8 have 0.50 nats instead of 2.25" in said[1]
    assert "spread of 1 ends best (90.0 %)" in said[2]
    assert said[2].endswith("first gradient is largest at spread 8.")
