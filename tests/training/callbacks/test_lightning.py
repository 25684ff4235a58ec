import pytest
import torch
from torch.utils.data import DataLoader

from attentropy.training import alarms
from tests.models.test_watch import Model

# other warnings of lightning (few workers, no checkpoints) are its own affair
pytestmark = pytest.mark.filterwarnings("ignore")
pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = Model()

    def training_step(self, batch, index):
        return self.model(batch).square().mean()

    def validation_step(self, batch, index):
        self.model(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(tmp_path, *callbacks, **options):
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path)
    settings = {
        "max_steps": 6, "accelerator": "cpu", "logger": logger, "callbacks": list(callbacks),
        "enable_progress_bar": False, "enable_checkpointing": False, "log_every_n_steps": 1,
        "enable_model_summary": False, "val_check_interval": 2, "num_sanity_val_steps": 1,
    }  # fmt: skip
    trainer = pl.Trainer(**{**settings, **options})
    loader = DataLoader(torch.randn(12, 7, 32), batch_size=2)
    module = Module()
    trainer.fit(module, loader, loader)
    return trainer, module, logger


def test_numbers_reach_the_logger(tmp_path):
    from attentropy.training.callbacks.lightning import AttentionCallback

    callback = AttentionCallback(every=2)
    _, module, logger = fit(tmp_path, callback)
    logger.save()
    text = next(tmp_path.rglob("metrics.csv")).read_text().splitlines()
    column = text[0].split(",").index("attn/entropy/mean")
    assert sum(bool(line.split(",")[column]) for line in text[1:]) == 3
    assert {row.rows for s in callback.monitor.history for row in s.rows} == {14}
    assert {row.layer for s in callback.monitor.history for row in s.rows} == {
        "model.layers.0",
        "model.layers.1",
    }
    assert not any(key.startswith("_attentropy") for m in module.modules() for key in m.__dict__)


def test_numbers_are_logged_metrics_and_reach_loggers_between_their_steps(tmp_path):
    from attentropy.training.callbacks.lightning import AttentionCallback

    callback = AttentionCallback(every=2)
    trainer, _, logger = fit(tmp_path, callback, log_every_n_steps=50)
    logger.save()
    last = callback.monitor.history[-1]
    mean = sum(row.entropy for row in last.rows) / len(last.rows)
    for found in (trainer.logged_metrics, trainer.callback_metrics):
        assert float(found["attn/entropy/mean"]) == pytest.approx(mean, rel=1e-6)
    lines = next(tmp_path.rglob("metrics.csv")).read_text().splitlines()
    column = lines[0].split(",").index("attn/entropy/mean")
    assert sum(bool(line.split(",")[column]) for line in lines[1:]) == 3


def test_early_stopping_monitors_attention(tmp_path):
    from lightning.pytorch.callbacks import EarlyStopping

    from attentropy.training.callbacks.lightning import AttentionCallback

    stopping = EarlyStopping("attn/entropy/mean", mode="max", stopping_threshold=0.0, patience=9)
    trainer, _, _ = fit(tmp_path, AttentionCallback(every=2), stopping)
    assert trainer.global_step == 2  # the first validation: entropy is above 0
    assert "attn/entropy/mean" in stopping.stopping_reason_message


@pytest.mark.parametrize("order", [1, -1], ids=["before", "after"])
def test_model_checkpoint_monitors_attention(tmp_path, order):
    from lightning.pytorch.callbacks import ModelCheckpoint

    from attentropy.training.callbacks.lightning import AttentionCallback

    best = ModelCheckpoint(tmp_path, monitor="attn/max_logit/max", mode="min", save_top_k=1)
    fit(tmp_path, *[best, AttentionCallback(every=2)][::order], enable_checkpointing=True)
    assert best.best_model_score is not None
    assert list(tmp_path.glob("*.ckpt"))


def test_an_alarm_can_stop_the_training(tmp_path):
    from attentropy.training.callbacks.lightning import AttentionCallback

    loud = alarms.LogitGrowth(limit=-100.0, action=alarms.stop)
    trainer, _, _ = fit(tmp_path, AttentionCallback(every=2, alarms=[loud]))
    assert trainer.global_step == 1


def test_the_old_name_of_loggers_works_with_a_warning():
    from attentropy.training.callbacks.lightning import AttentionCallback

    with pytest.warns(DeprecationWarning, match="sinks is now called loggers"):
        callback = AttentionCallback(sinks=None)
    assert callback.options["loggers"] is None
    assert AttentionCallback().options["loggers"] == ()
