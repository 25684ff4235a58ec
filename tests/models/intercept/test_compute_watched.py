"""Models made of attentropy.nn are seen by watch() and Monitor, exactly as attend() has them."""

import pytest
import torch
from torch import nn

import attentropy as at
from attentropy.attention.hooks import hooks
from attentropy.nn.layers.multihead import MultiheadAttention
from attentropy.nn.layers.variants import AdditiveAttention, CosineAttention
from attentropy.training.runstore import RunStore, read


class Two(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.layers = nn.ModuleList(make() for _ in range(2))

    def forward(self, x):
        self.seen = []
        for layer in self.layers:
            out, stats = layer(x)
            self.seen.append(stats)
            x = x + out
        return x


MADE = {
    "plain": lambda: MultiheadAttention(32, 4),
    "causal": lambda: MultiheadAttention(32, 4, mask=at.causal),
    "grouped": lambda: MultiheadAttention(32, 4, num_kv_heads=2, mask=at.causal & at.lookback(5)),
    "alibi": lambda: MultiheadAttention(32, 4, mask=at.causal, positions=at.ALiBi()),
    "log n": lambda: MultiheadAttention(32, 4, mask=at.causal, scale=at.LogLength(2.0)),
    "cosine": lambda: CosineAttention(32, 4, mask=at.causal),
    "additive": lambda: AdditiveAttention(32, 4, mask=at.causal),
    "predicate": lambda: MultiheadAttention(
        32, 4, mask=at.Mask(lambda w: (w.q - w.k) % 2 == 0, "even")
    ),
}


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("keep", ["mean", "rows"])
def test_heads_are_those_of_the_layers(name, keep):
    torch.manual_seed(0)
    model, x = Two(MADE[name]), torch.randn(3, 11, 32)
    plain = model(x)
    with at.watch(model, keep=keep, sample=None) as w:
        watched = model(x)
    assert torch.equal(watched, plain)
    assert [row.layer for row in w.heads()] == ["layers.0"] * 4 + ["layers.1"] * 4
    for index, stats in enumerate(model.seen):
        heads, rows = stats.per_head(), [row for row in w.heads() if row.index == index]
        for ours, theirs in (("entropy", heads.entropy), ("normalized_entropy", heads.normalized_entropy),
                             ("max_logit", heads.max_logit), ("collision", heads.collision)):  # fmt: skip
            told = torch.tensor([getattr(row, ours) for row in rows], dtype=torch.float64)
            torch.testing.assert_close(told, theirs.detach().double(), atol=1e-5, rtol=1e-5)


def weights(layer, x):
    """Dense weights of a layer with dot products, causal and without positions."""
    q, k, _ = layer._at_once(x)
    s = q @ k.mT * layer.head_dim**-0.5
    return s, s.masked_fill(~torch.ones(s.shape[-2:]).tril().bool(), -torch.inf).softmax(-1)


def test_what_needs_single_weights_is_right_too():
    torch.manual_seed(1)
    model, x = Two(MADE["causal"]), torch.randn(2, 9, 32)
    with torch.no_grad(), at.watch(model, keep="rows", sample=None) as w:
        model(x)
    _, p = weights(model.layers[0], x)
    place = torch.arange(9)
    before = p[:, :, place[1:], place[:-1]].mean((0, 2))
    distance = (p * (place[:, None] - place).abs()).sum(-1)[:, :, 1:].mean((0, 2))
    for head, row in enumerate(w.heads()[:4]):
        assert row.sink_mass == pytest.approx(p[:, head, 1:, 0].mean().item(), abs=1e-6)
        assert row.previous_share == pytest.approx(before[head].item(), abs=1e-6)
        assert row.distance == pytest.approx(distance[head].item(), abs=1e-5)
        assert row.causal


def test_padding_does_not_count():
    layer, x = MultiheadAttention(32, 4), torch.randn(2, 9, 32)
    padded = torch.zeros(2, 9, dtype=torch.bool)
    padded[1, 6:] = True
    with torch.no_grad(), at.watch(layer) as w:
        layer(x, key_padding_mask=padded)
    assert {row.rows for row in w.heads()} == {15}


def test_cross_attention_is_told_apart():
    layer = MultiheadAttention(32, 4)
    with torch.no_grad(), at.watch(layer) as w:
        layer(torch.randn(2, 5, 32), torch.randn(2, 7, 32))
    assert {row.kind for row in w.heads()} == {"cross"}


def test_a_monitor_writes_them_into_its_run_store(tmp_path):
    model, path = Two(MADE["causal"]), tmp_path / "run.db"
    with at.Monitor(model, every=2, loggers=[RunStore(path)]) as monitor:
        for _ in range(3):
            loss = model(torch.randn(2, 6, 32)).square().mean()
            loss.backward()
            monitor.step(loss)
    run = read(path)
    assert run.steps == [0, 2]
    want = [stats.per_head().entropy.detach() for stats in model.seen]
    for told, theirs in zip(run.metrics["entropy"][-1], want):
        torch.testing.assert_close(torch.tensor(told), theirs.float(), atol=1e-5, rtol=1e-5)


def test_everything_is_put_back_and_direct_calls_are_left_alone():
    model, x = Two(MADE["plain"]), torch.randn(1, 4, 32)
    q = torch.randn(1, 1, 4, 8)
    with at.watch(model) as outer:
        with at.watch(Two(MADE["plain"])) as inner:
            inner.model(x)
        model(x)
        at.attend(q, q, q)
    assert hooks.record is None
    assert len(outer.heads()) == len(inner.heads()) == 8
    assert {row.rows for row in outer.heads()} == {4}


def test_a_hierarchy_is_not_recorded_in_parts_and_this_is_said():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.far, self.near = Far(), MultiheadAttention(32, 4)

        def forward(self, x):
            return self.near(self.far(x)).out

    class Far(nn.Module):
        def forward(self, x):
            x = x[:, None]
            return at.nn.hierarchical(x, x, x, 2).out[:, 0]

    model, x = Mixed(), torch.randn(1, 32, 32)
    why = r"nothing was recorded of far \(hierarchical\(\)"
    with pytest.warns(RuntimeWarning, match=why), at.watch(model) as w:
        model(x)
    assert {row.layer for row in w.heads()} == {"near"}
    why = r"nothing was recorded of the model \(hierarchical"
    with pytest.raises(RuntimeError, match=why), at.watch(model.far):
        model(x)
