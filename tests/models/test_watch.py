"""Watching torch's own modules and hand-written ones, and what a watch promises."""

import copy
import gc
import math
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import attentropy as at
from attentropy.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    AttentropyError,
)
from attentropy.models.watch import NothingRecorded


class Attention(nn.Module):
    """Self-attention on F.scaled_dot_product_attention, or by hand."""

    def __init__(self, width=32, heads=4, *, key_heads=None, by_hand=False, **options):
        super().__init__()
        self.heads, self.key_heads, self.by_hand = heads, key_heads or heads, by_hand
        size = width // heads
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * self.key_heads * size)
        self.options = options

    def project(self, x):
        q = self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2 * self.key_heads, -1)).transpose(1, 2).chunk(2, 1)
        return q, k, v

    def forward(self, x, mask=None):
        q, k, v = self.project(x)
        if self.by_hand:
            s = q @ k.mT * q.shape[-1] ** -0.5
            if mask is not None:
                s = s.masked_fill(~mask, -torch.inf)
            out = torch.softmax(s, -1) @ v
        else:
            gqa = self.key_heads != self.heads
            out = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=gqa, **self.options)
        return out.transpose(1, 2).flatten(2)


class Model(nn.Module):
    def __init__(self, layers=2, *, checkpointed=None, **options):
        super().__init__()
        self.layers = nn.ModuleList(Attention(**options) for _ in range(layers))
        self.checkpointed = checkpointed

    def forward(self, x, mask=None):
        for layer in self.layers:
            if self.checkpointed is None:
                x = x + layer(x, mask)
            else:
                x = x + checkpoint(layer, x, mask, use_reentrant=self.checkpointed)
        return x


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def sharp(model):
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.2)
    return model.eval()


def dense(layer, x, mask=None):
    """Logits and weights of one Attention layer, float64."""
    q, k, _ = (t.double() for t in layer.project(x))
    k = k.repeat_interleave(layer.heads // layer.key_heads, 1)
    s = q @ k.mT * q.shape[-1] ** -0.5
    if mask is not None:
        s = s.masked_fill(~mask, -torch.inf)
    return s, s.softmax(-1)


CAUSAL = torch.ones(11, 11).tril().bool()


def values(w, name):
    return torch.tensor([getattr(row, name) for row in w.heads()], dtype=torch.float64)


@pytest.mark.parametrize("options", [{}, {"sample": None}, {"keep": "rows"}])
@pytest.mark.parametrize("kind", ["padded", "causal", "full"])
def test_every_statistic_against_dense_weights(kind, options):
    model = sharp(Model(1))
    x = torch.randn(2, 11, 32)
    lengths = torch.tensor([11, 7] if kind == "padded" else [11, 11])
    real = torch.arange(11) < lengths[:, None]
    mask = (torch.ones_like(CAUSAL) if kind == "full" else CAUSAL) & real[:, None, None, :]
    with torch.no_grad(), at.watch(model, **options) as w:
        model(x, mask)
    s, p = dense(model.layers[0], x, mask)
    v = model.layers[0].project(x)[2].double()
    seen = mask.expand_as(s)
    visible = seen.sum(-1)
    rows = visible >= 2  # nobody says that queries are padding
    mean = lambda t: (t.nan_to_num(0, 0, 0) * rows).sum((0, 2)) / rows.sum((0, 2))  # noqa: E731
    i, j = torch.arange(11)[:, None], torch.arange(11)
    entropy = torch.special.entr(p).sum(-1)
    collision = p.square().sum(-1)
    previous = F.pad(p.diagonal(-1, 2, 3), (1, 0))
    centred = s - s.masked_fill(~seen, 0).sum(-1, keepdim=True) / visible[..., None]
    variance = centred.masked_fill(~seen, 0).square().sum(-1) / visible
    received = (p * rows[..., None]).sum(2) / rows.sum(2)[..., None]
    concentration = (received.square().sum(-1) * rows.sum(2)).sum(0) / rows.sum((0, 2))
    low = s.masked_fill(~seen, torch.inf).amin(-1)
    flat = (p * rows[..., None]).transpose(0, 1).flatten(1)
    cosine = F.normalize(flat, dim=-1) @ F.normalize(flat, dim=-1).T
    want = {
        "rows": rows.expand_as(entropy).sum((0, 2)),
        "entropy": mean(entropy),
        "perplexity": mean(entropy.exp()),
        "normalized_entropy": mean(entropy / visible.log()),
        "deficit": mean(visible.log() - entropy),
        "visible": mean(visible.double()),
        "lse": mean(s.logsumexp(-1)),
        "mean_logit": mean(s.logsumexp(-1) - entropy),
        "max_logit": s.amax(-1).masked_fill(~rows, -torch.inf).amax((0, 2)),
        "top_probability": mean(p.amax(-1)),
        "collision": mean(collision),
        "gradient_flow": mean(1 - collision),
        "sparsity": mean((visible * collision).rsqrt()),
        "noise_robustness": mean(((math.e - 1) * collision).rsqrt()),
        "output_norm": mean((p @ v).norm(dim=-1)),
        "sink_mass": mean(p[..., 0]),
        "previous_share": mean(previous),
        "distance": mean((p * (i - j).abs()).sum(-1)),
        "received_concentration": concentration,
        "spread": mean(variance.sqrt()),
        "logit_range": mean(s.amax(-1) - low),
        "likeness": cosine.fill_diagonal_(-1).amax(1),
        "twin": cosine.argmax(1),
    }
    for name, value in want.items():
        got = values(w, name)
        assert torch.allclose(got, value.double(), atol=2e-6, rtol=2e-6), (name, got, value)


@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_sdpa_outputs_and_entropy(key_heads):
    model = sharp(Model(key_heads=key_heads))
    x = torch.randn(3, 11, 32)
    with torch.no_grad():
        plain = model(x, CAUSAL)
        with at.watch(model) as w:
            watched = model(x, CAUSAL)
    torch.testing.assert_close(watched, plain, atol=2e-6, rtol=2e-6)
    entropy = torch.special.entr(dense(model.layers[0], x, CAUSAL)[1]).sum(-1)[:, :, 1:]
    torch.testing.assert_close(values(w, "entropy")[:4], entropy.mean((0, 2)), atol=1e-6, rtol=0)
    assert [row.layer for row in w.heads()] == ["layers.0"] * 4 + ["layers.1"] * 4
    assert F.scaled_dot_product_attention.__module__ != "attentropy.models.intercept.sdpa"


def test_hand_written_softmax_is_tapped():
    model = sharp(Model(by_hand=True))
    x = torch.randn(2, 11, 32)
    with torch.no_grad():
        plain = model(x, CAUSAL)
        with at.watch(model, sample=None) as w:
            assert torch.equal(model(x, CAUSAL), plain)
        twin = sharp(Model())
        twin.load_state_dict(model.state_dict())
        with at.watch(twin, sample=None) as v:
            twin(x, CAUSAL)
    for tapped, seen in zip(w.heads(), v.heads(), strict=True):
        for name in ("entropy", "max_logit", "sink_mass", "previous_share", "distance", "lse",
                     "received_concentration", "spread", "positional", "likeness"):  # fmt: skip
            assert getattr(tapped, name) == pytest.approx(getattr(seen, name), abs=2e-6), name
    assert math.isnan(w.heads()[0].output_norm)


def test_softmax_outside_attention_is_left_alone():
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = sharp(Model(1))
            self.route = nn.Linear(32, 3)

        def forward(self, x):
            return self.attn(x) * self.route(x).softmax(-1).amax(-1, keepdim=True)

    gate = Gate()
    with at.watch(gate) as w:
        gate(torch.randn(1, 5, 32))
    assert {row.layer for row in w.heads()} == {"attn.layers.0"}


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("backward_inside", [True, False])
def test_checkpointing_counts_once_and_keeps_gradients(reentrant, backward_inside):
    plain = sharp(Model()).train()
    model = Model(checkpointed=reentrant).train()
    model.load_state_dict(plain.state_dict())
    x = torch.randn(2, 11, 32, requires_grad=True)
    (expected,) = torch.autograd.grad(plain(x, CAUSAL).square().sum(), x)
    with at.watch(model) as w:
        loss = model(x, CAUSAL).square().sum()
        if backward_inside:
            (got,) = torch.autograd.grad(loss, x) if not reentrant else (backward(loss, x),)
    if not backward_inside:
        got = backward(loss, x)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    assert {row.rows for row in w.heads()} == {20}


def backward(loss, x):
    x.grad = None
    loss.backward()
    return x.grad


def test_gradients_are_those_of_the_unwatched_model():
    model = sharp(Model()).train()
    x = torch.randn(2, 11, 32)
    model(x, CAUSAL).square().sum().backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with at.watch(model):
        model(x, CAUSAL).square().sum().backward()
    for got, want in zip((p.grad for p in model.parameters()), plain, strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def test_autocast_records_in_float():
    model = sharp(Model())
    x = torch.randn(2, 11, 32)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        plain = model(x, CAUSAL)
        with at.watch(model) as w:
            watched = model(x, CAUSAL)
    torch.testing.assert_close(watched.float(), plain.float(), atol=0.1, rtol=0.05)
    full = torch.special.entr(dense(model.layers[0], x, CAUSAL)[1]).sum(-1)[:, :, 1:].mean((0, 2))
    torch.testing.assert_close(values(w, "entropy")[:4], full, atol=0.05, rtol=0)
    # weights that were looked at one by one are as precise as those of the kernel
    top, spread = values(w, "top_probability"), values(w, "likeness")
    assert bool((spread <= 1 + 1e-5).all())
    assert bool((values(w, "sink_mass") <= top + 1e-5).all())


def test_every_records_one_forward_in_so_many():
    model = Model()
    with at.watch(model, every=3) as w:
        for _ in range(7):
            model(torch.randn(1, 11, 32), CAUSAL)
    assert {row.rows for row in w.heads()} == {30}


def test_calls_of_a_shared_module_are_told_apart():
    layer = Attention()

    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared = layer

        def forward(self, x):
            for _ in range(3):
                x = x + self.shared(x)
            return x

    loop = Loop()
    with at.watch(loop) as w:
        loop(torch.randn(2, 5, 32))
        loop(torch.randn(2, 5, 32))
    assert [(row.call, row.head) for row in w.heads()] == [
        (c, h) for c in range(3) for h in range(4)
    ]
    assert {row.rows for row in w.heads()} == {20}
    assert w.heads()[4].label == "shared#1.0"


def test_nothing_recorded_says_why():
    with pytest.raises(NothingRecorded, match="no forward pass of Model ran"), at.watch(Model()):
        pass
    mlp = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(NothingRecorded, match="Sequential ran, but made no call"), at.watch(mlp):
        mlp(torch.randn(2, 4))


def test_an_error_inside_is_not_hidden_and_everything_is_put_back():
    before = F.scaled_dot_product_attention, F.softmax, torch.softmax, torch.Tensor.softmax
    model = Model()
    with pytest.raises(ZeroDivisionError), at.watch(model):
        _ = 1 / 0
    assert before == (
        F.scaled_dot_product_attention,
        F.softmax,
        torch.softmax,
        torch.Tensor.softmax,
    )
    for module in model.modules():
        assert not any(key.startswith("_attentropy") for key in module.__dict__)
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_watching_twice_is_refused_and_other_models_are_left_alone():
    model, other = Model(), Model()
    with at.watch(model) as w:
        with pytest.raises(AttentropyError, match="is being watched already"):
            at.watch(model).start()
        model(torch.randn(1, 5, 32))
        other(torch.randn(1, 5, 32))
    assert {row.rows for row in w.heads()} == {5}


def test_two_models_can_be_watched_at_once():
    model, other = Model(), Model()
    with at.watch(model) as w, at.watch(other) as v:
        model(torch.randn(1, 5, 32))
        other(torch.randn(1, 7, 32))
    assert w.heads()[0].rows == 5
    assert v.heads()[0].rows == 7


def test_sampling_is_a_fair_estimate_and_keeps_the_exact_ones():
    model = sharp(Model(1))
    x = torch.randn(2, 64, 32)
    got = []
    for sample in (None, 16):
        with torch.no_grad(), at.watch(model, sample=sample) as w:
            model(x)
        got.append(w)
    exact, few = got
    assert torch.equal(values(exact, "sink_mass"), values(few, "sink_mass"))
    torch.testing.assert_close(values(few, "distance"), values(exact, "distance"), rtol=0.2, atol=0)


def test_in_a_long_call_some_rows_stand_for_the_weight_of_the_first_key(monkeypatch):
    model = sharp(Model(1, is_causal=True))
    x = torch.randn(1, 2049, 32)
    with torch.no_grad(), at.watch(model, keep="rows") as exact:
        model(x)
    monkeypatch.setattr("attentropy.models.record.measures.MANY", x.numel() // 4)
    with torch.no_grad(), at.watch(model) as few:
        model(x)
    assert not torch.equal(values(exact, "sink_mass"), values(few, "sink_mass"))
    close = torch.testing.assert_close
    close(values(few, "sink_mass"), values(exact, "sink_mass"), rtol=0, atol=0.005)
    for name in ("entropy", "output_norm", "rows", "visible"):
        close(values(few, name), values(exact, name))


def test_small_calls_are_looked_at_whole_and_long_ones_at_a_few_rows():
    model = sharp(Model(1))
    for queries, rows in ((40, 2 * 40), (2048, 2 * 8)):
        with torch.no_grad(), at.watch(model) as w:
            model(torch.randn(2, queries, 32))
        ((_, slot),) = w.places()
        assert slot.sampled[0].tolist() == [rows] * 4


def test_nothing_of_the_model_is_kept_alive():
    model = Model()
    with at.watch(model) as w:
        model(torch.randn(1, 5, 32))
    gone = weakref.ref(model.layers[0].q.weight)
    w.model = None
    del model
    gc.collect()
    assert gone() is None


def test_a_watched_model_can_be_copied_afterwards():
    model = Model()
    with at.watch(model):
        model(torch.randn(1, 5, 32))
    copy.deepcopy(model)(torch.randn(1, 5, 32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every must be an integer >= 1, got 0"),
        ({"keep": "all"}, 'keep must be "mean" or "rows", got \'all\''),
        ({"sample": 0}, "sample must be an integer >= 1, or None, got 0"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ArgumentError, match=message):
        at.watch(Model(), **options)
    with pytest.raises(ArgumentTypeError, match="model must be a torch.nn.Module, got str"):
        at.watch("gpt2")


def test_a_row_is_read_by_name_too():
    model = Model()
    with at.watch(model) as w:
        model(torch.randn(2, 6, 32))
    row = w.heads()[0]
    assert row["entropy"] == row.entropy
    assert dict(row)["layer"] == row.layer
    with pytest.raises(KeyError, match="entropie"):
        row["entropie"]
