import pytest
import torch

import attentropy as at
from attentropy.training import alarms, runstore
from tests.models.zoo import build

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")


def trainer(tmp_path, callback, **options):
    import copy

    model = copy.deepcopy(build("llama", "sdpa"))
    torch.manual_seed(0)
    data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(3, 61, (16, 12))]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=6, per_device_train_batch_size=4,
        save_strategy="no", use_cpu=True, disable_tqdm=True,
        dataloader_pin_memory=False, **{"report_to": "none", "logging_steps": 2, **options},
    )  # fmt: skip
    return transformers.Trainer(
        model, arguments, train_dataset=data, eval_dataset=data[:8], callbacks=[callback]
    )


@pytest.fixture
def callback():
    from attentropy.training.callbacks.huggingface import AttentionCallback

    return AttentionCallback(every=2)


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_numbers_reach_log_history_and_tensorboard(tmp_path, callback, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tb"))
    training = trainer(
        tmp_path, callback, report_to="tensorboard", eval_strategy="steps", eval_steps=2
    )
    training.train()
    logged = [log for log in training.state.log_history if "attn/entropy/mean" in log]
    assert [log["step"] for log in logged] == [2, 4, 6]
    assert all(0 < log["attn/entropy/mean"] < 3 and "loss" in log for log in logged)
    # evaluation between the steps did not mix in: 4 x 11 rows that had a choice
    assert {row.rows for s in callback.monitor.history for row in s.rows} == {44}
    events = EventAccumulator(str(tmp_path / "tb")).Reload()
    assert len(events.Scalars("train/attn/entropy/mean")) == 3
    assert training.model.config._attn_implementation == "sdpa"
    assert "log" not in training.__dict__


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("steps", [(1, False), (4, True), (5, False)]), ("no", [(1, False), (3, False), (5, False)])],
)
def test_every_sample_is_in_log_history_though_losses_are_logged_seldom(
    tmp_path, callback, strategy, expected
):
    training = trainer(tmp_path, callback, logging_steps=4, logging_strategy=strategy)
    training.train()
    logged = [log for log in training.state.log_history if "attn/entropy/mean" in log]
    assert [(log["step"], "loss" in log) for log in logged] == expected


def test_gradient_accumulation_adds_up_and_losses_reach_the_store(tmp_path, monkeypatch):
    from attentropy.training.callbacks.huggingface import AttentionCallback

    monkeypatch.setenv("ATTENTROPY_RUNS", str(tmp_path))
    callback = AttentionCallback(every=3, loggers=None, name="run")
    trainer(tmp_path, callback, gradient_accumulation_steps=2).train()
    assert {row.rows for s in callback.monitor.history for row in s.rows} == {88}
    run = runstore.read("run")
    assert run.steps == [1, 4]
    assert [step for step, _ in run.losses] == [2, 4, 6]
    assert not run.running


def test_an_alarm_can_stop_the_training(tmp_path):
    from attentropy.training.callbacks.huggingface import AttentionCallback

    loud = alarms.LogitGrowth(limit=0.0, action=alarms.stop)
    training = trainer(tmp_path, AttentionCallback(every=2, alarms=[loud]))
    training.train()
    assert training.state.global_step == 1


def test_weights_are_those_of_an_unmonitored_training(tmp_path, callback):
    plain = trainer(tmp_path, transformers.TrainerCallback())
    monitored = trainer(tmp_path, callback)
    plain.train()
    monitored.train()
    for a, b in zip(plain.model.parameters(), monitored.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)
    assert at.Monitor is not None


def test_the_old_name_of_loggers_works_with_a_warning():
    from attentropy.training.callbacks.huggingface import AttentionCallback

    with pytest.warns(DeprecationWarning, match="sinks is now called loggers"):
        callback = AttentionCallback(sinks=None)
    assert callback.options["loggers"] is None
    assert AttentionCallback().options["loggers"] == ()
