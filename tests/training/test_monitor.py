import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attentropy as at
from attentropy.core.errors import ArgumentError, ArgumentTypeError
from attentropy.training import alarms, runstore
from tests.models.test_watch import CAUSAL, Model
from tests.rows import head_row


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTENTROPY_RUNS", str(tmp_path / "runs"))
    torch.manual_seed(0)


class Logger(list):
    def __call__(self, metrics, step):
        self.append((step, metrics))


def train(monitor, model, steps):
    for _ in range(steps):
        loss = model(torch.randn(2, 11, 32), CAUSAL).square().mean()
        loss.backward()
        monitor.step(loss=loss)


def test_one_step_in_every_is_sampled_and_evaluation_does_not_mix_in():
    model, logger = Model().train(), Logger()
    monitor = at.Monitor(model, every=3, loggers=[logger])
    for _ in range(7):
        train(monitor, model, 1)
        model.eval()
        model(torch.randn(5, 11, 32), CAUSAL)
        model.train()
    assert [step for step, _ in logger] == [0, 3, 6]
    assert {row.rows for _, metrics in logger for row in metrics.rows} == {20}
    monitor.close()
    assert F.scaled_dot_product_attention.__module__ != "attentropy.models.intercept.sdpa"


def test_nothing_is_touched_between_samples():
    model = Model().train()
    monitor = at.Monitor(model, every=5, loggers=[])
    train(monitor, model, 1)
    assert F.scaled_dot_product_attention.__module__ != "attentropy.models.intercept.sdpa"
    assert not model.layers[0]._forward_hooks
    monitor.close()


def test_the_default_logger_is_a_run_store():
    model = Model().train()
    with at.Monitor(model, every=2, name="first") as monitor:
        train(monitor, model, 5)
    run = runstore.read("first")
    assert run.steps == [0, 2, 4]
    assert [step for step, _ in run.losses] == [0, 1, 2, 3, 4]
    assert run.notes["model"] == "Model"
    assert not run.running


def test_the_old_name_of_loggers_works_with_a_warning():
    old = "sinks is now called loggers"
    model, logger = Model().train(), Logger()
    with pytest.warns(DeprecationWarning, match=old), at.Monitor(model, sinks=[logger]) as monitor:
        train(monitor, model, 1)
    assert len(logger) == 1
    with pytest.warns(DeprecationWarning, match=old):
        monitor = at.Monitor(model, sinks=None, name="by the old name")
    assert [type(one).__name__ for one in monitor.loggers] == ["RunStore"]
    monitor.close()
    with pytest.raises(ArgumentError, match="sinks must be left out where loggers are given"):
        at.Monitor(model, loggers=[logger], sinks=[logger])


def test_each_head_rings_once_until_it_recovers():
    rang = []
    alarm = alarms.LogitGrowth(limit=0.0, action=lambda alert, monitor: rang.append(alert))
    model = Model().train()
    monitor = at.Monitor(model, every=1, loggers=[], alarms=[alarm])
    train(monitor, model, 4)
    assert len(rang) == len(monitor.alerts) == 1
    assert len(rang[0].heads) == 8
    monitor.close()


def test_an_alert_names_the_heads_that_are_new():
    heads = [(), (1,), (1, 2), (1, 2)]
    monitor = at.Monitor(Model(), every=1, loggers=[], alarms=[alarms.EntropyCollapse()])
    for step, fallen in enumerate(heads):
        rows = [head_row(h, entropy=0.1 if h in fallen else 2.5) for h in range(4)]
        with warnings.catch_warnings(action="ignore"):
            monitor._told(step, None, rows)
    assert [(alert.step, alert.heads) for alert in monitor.alerts] == [
        (1, ((0, 1),)),
        (2, ((0, 2),)),
    ]
    assert "attn.2" in monitor.alerts[1].text
    assert "attn.1" not in monitor.alerts[1].text
    monitor.close()


def test_memory_does_not_grow_with_the_run():
    patient = alarms.LogitGrowth(window=20)
    monitor = at.Monitor(Model(), loggers=[], alarms=[patient, alarms.EntropyCollapse(base=5)])
    for step in range(100):
        monitor._told(step, None, [head_row()])
    assert [sample.step for sample in monitor.history] == [*range(5), *range(80, 100)]
    monitor.close()


def test_actions_warn_stop_and_clip():
    model = Model().train()
    loud = alarms.LogitGrowth(limit=1e-3)
    monitor = at.Monitor(model, every=1, loggers=[], alarms=[loud])
    with pytest.warns(RuntimeWarning, match="attentropy, step 0: logits reached"):
        train(monitor, model, 1)
    monitor.close()
    stopping = alarms.LogitGrowth(limit=1e-3, action=alarms.stop)
    monitor = at.Monitor(model, every=1, loggers=[], alarms=[stopping])
    assert not monitor.should_stop
    train(monitor, model, 1)
    assert monitor.should_stop
    monitor.close()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_()
    capping = alarms.LogitGrowth(limit=2.0, action=alarms.clip(2.0))
    monitor = at.Monitor(model, every=1, loggers=[], alarms=[capping])
    train(monitor, model, 2)
    first, second = (max(row.max_logit for row in s.rows) for s in monitor.history)
    assert first > 10
    assert second <= 2.0
    monitor.changes[0].undo()
    monitor.close()


def test_a_failing_logger_is_dropped_with_a_warning_and_the_others_go_on():
    def broken(metrics, step):
        raise ValueError("a mistake")

    model, logger = Model().train(), Logger()
    monitor = at.Monitor(model, every=1, loggers=[broken, logger])
    with pytest.warns(RuntimeWarning, match="failed and is not called again: ValueError"):
        train(monitor, model, 1)
    train(monitor, model, 1)
    assert len(logger) == 2
    assert monitor.loggers == [logger]
    monitor.close()


def test_a_model_that_is_not_seen_is_warned_about_once():
    model, other = Model().train(), Model().train()
    monitor = at.Monitor(model, every=1, loggers=[])
    with pytest.warns(RuntimeWarning, match="no attention was seen"):
        train(monitor, other, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(monitor, other, 1)
    monitor.close()


def test_a_step_without_attention_gives_no_sample():
    model, logger = Model().train(), Logger()
    monitor = at.Monitor(model, every=1, loggers=[logger])
    train(monitor, model, 1)
    with pytest.warns(RuntimeWarning, match="no attention was seen"):
        monitor.step()
    train(monitor, model, 1)
    assert [step for step, _ in logger] == [0, 2]
    monitor.close()


def test_bad_arguments():
    with pytest.raises(ArgumentError, match="every must be an integer >= 1, got 0"):
        at.Monitor(Model(), every=0)
    with pytest.raises(ArgumentTypeError, match="loggers must be callables"):
        at.Monitor(Model(), loggers=["x"])
    with pytest.raises(
        ArgumentTypeError, match="alarms must be values of attentropy.training.alarms"
    ):
        at.Monitor(Model(), alarms=["x"])
    with at.Monitor(Model(), loggers=[]) as monitor:
        for loss in ("x", torch.ones(2)):
            with pytest.raises(
                ArgumentTypeError, match="loss must be a number, or a tensor of one"
            ):
                monitor.step(loss)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, width))

    def forward(self, x):
        q, k, v = (
            self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class LanguageModel(nn.Module):
    """Two blocks over 32 tokens."""

    def __init__(self, width=64):
        super().__init__()
        self.tokens, self.places = nn.Embedding(32, width), nn.Embedding(32, width)
        self.blocks = nn.Sequential(Block(width, 4), Block(width, 4))
        self.read = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 32, bias=False))

    def forward(self, ids):
        return self.read(self.blocks(self.tokens(ids) + self.places.weight[: ids.shape[1]]))


def sentences(count, generator):
    """Each token follows from the one four places before it: attention has to find that."""
    chances = (torch.randn(32, 32, generator=torch.Generator().manual_seed(5)) * 4).softmax(-1)
    ids = torch.randint(0, 32, (count, 4), generator=generator)
    for _ in range(28):
        ids = torch.cat([ids, torch.multinomial(chances[ids[:, -4]], 1, generator=generator)], 1)
    return ids


def run(peak, steps):
    """Learning rate rising to `peak`: losses, and the alerts."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = LanguageModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=peak, betas=(0.9, 0.95))
    ramp = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / steps)
    quiet = lambda alert, monitor: None  # noqa: E731
    listening = [alarms.LogitGrowth(action=quiet), alarms.NotFinite(action=quiet)]
    losses = []
    with at.Monitor(model, every=5, loggers=[], alarms=listening) as monitor:
        for _ in range(steps):
            ids = sentences(16, generator)
            loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ramp.step()
            monitor.step(loss)
            losses.append(float(loss.detach()))
    return losses, monitor.alerts


def divergence(losses):
    """The first step at which the loss is 0.5 above its best, for good; None if it never is."""
    best = [min(losses[: i + 1]) for i in range(len(losses))]
    above = [not loss < low + 0.5 for loss, low in zip(losses, best, strict=True)]
    return next((i for i in range(len(above)) if all(above[i : i + 5])), None)


def test_the_alarm_rings_before_the_loss_diverges():
    losses, alerts = run(peak=0.4, steps=240)
    step = divergence(losses[:-5])
    assert step is not None
    assert min(losses[:step]) < losses[0] - 0.3  # it had learned something
    foreseen = next(alert.step for alert in alerts if alert.severity == "warning")
    passed = next(alert.step for alert in alerts if alert.severity == "critical")
    assert foreseen <= passed < step, (foreseen, passed, step)


def test_a_calm_run_rings_nothing():
    losses, alerts = run(peak=0.004, steps=80)
    assert losses[-1] < losses[0]
    assert alerts == []
    assert not any(math.isnan(loss) for loss in losses)
