"""Copies and pickles of watched and of steered models, in this process and in another."""

import copy
import gc
import io
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attentropy as at
from attentropy.attention.hooks import hooks
from attentropy.nn import MultiheadAttention
from tests.models.zoo import build, inputs

X = torch.randn(2, 11, 32, generator=torch.Generator().manual_seed(1))
LOAD = """
import sys, torch
with torch.no_grad():
    for model, given, want in zip(*torch.load(sys.argv[1], weights_only=False)):
        out = model(**given)
        out = out if isinstance(out, torch.Tensor) else out[0]
        torch.testing.assert_close(out, want, atol=1e-5, rtol=1e-5)
"""


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = MultiheadAttention(32, 4, mask=at.causal)

    def forward(self, x):
        return self.layer(x).out


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def elsewhere(tmp_path, model, given, want):
    """Load it in a process of its own, which has not heard of attentropy, and compare."""
    torch.save((model, given, want), tmp_path / "model.pt")
    command = [sys.executable, "-c", LOAD, str(tmp_path / "model.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("made", [copy.deepcopy, saved])
def test_a_copy_of_a_watched_model_is_not_watched(made):
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(32, 4, 32, dropout=0.0, batch_first=True)
    with at.watch(model) as w:
        plain = model(X)
        twin = made(model)
        torch.testing.assert_close(twin(X), plain)
        with at.watch(twin) as v:
            twin(X)
    assert {row.rows for row in (*w.heads(), *v.heads())} == {22}
    torch.testing.assert_close(twin(X), plain)


def test_a_copy_made_beside_a_monitor_counts_nothing():
    """As one is made for an average of the weights."""
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(32, 4, 32, dropout=0.0, batch_first=True)
    with at.Monitor(model, every=1, loggers=[]) as monitor:
        average = copy.deepcopy(model)
        for _ in range(2):
            model(X).sum().backward()
            average(X)
            monitor.step()
    assert [[row.rows for row in sample.rows] for sample in monitor.history] == [[22] * 4] * 2
    assert {row.call for sample in monitor.history for row in sample.rows} == {0}


@pytest.mark.slow
@torch.no_grad()
def test_a_watched_transformers_model_runs_elsewhere(tmp_path):
    pytest.importorskip("transformers")
    model, batch = copy.deepcopy(build("llama", "sdpa")), inputs("llama", padded=False)
    plain = model(**batch)[0]
    with at.watch(model):
        model(**batch)
        elsewhere(tmp_path, [model], [batch], [plain])


@pytest.mark.parametrize(
    "made", [Own, lambda: nn.TransformerEncoderLayer(32, 4, 32, batch_first=True)]
)
@torch.no_grad()
def test_a_copy_stays_steered_until_it_is_gone(made):
    before = F.scaled_dot_product_attention, hooks.change
    model = made().eval()
    plain = model(X)
    handle = at.steer(model, temperature=20.0)
    steered, twin = model(X), copy.deepcopy(model)
    handle.undo()
    torch.testing.assert_close(twin(X), steered)
    torch.testing.assert_close(model(X), plain)
    assert not torch.allclose(steered, plain, atol=1e-4)
    del twin
    gc.collect()
    assert (F.scaled_dot_product_attention, hooks.change) == before


@torch.no_grad()
def test_steered_models_are_steered_elsewhere(tmp_path):
    pytest.importorskip("transformers")
    llama = copy.deepcopy(build("llama", "sdpa"))
    layer = nn.TransformerEncoderLayer(32, 4, 32, batch_first=True).eval()
    both = nn.ModuleList([llama, layer])
    handles = [at.steer(model, temperature=20.0) for model in both]
    given = inputs("llama", padded=False), {"src": X}
    want = llama(**given[0])[0], layer(**given[1])
    elsewhere(tmp_path, both, given, want)
    for handle in handles:
        handle.undo()
