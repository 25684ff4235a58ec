import contextlib
import json
import math
import sqlite3
import warnings

import pytest

from attentropy.core.errors import ArgumentTypeError
from attentropy.training.alarms import Alert
from attentropy.training.loggers import JSONLines, TensorBoard, Tracker
from attentropy.training.metrics import Metrics
from attentropy.training.pictures import CELL, PICTURED
from tests.rows import head_row

ROWS = [head_row(h, index=i, normalized_entropy=h / 4) for i in range(2) for h in range(4)]
ALERT = Alert(3, "logit growth", "critical", ((0, 1),), "logits reached 60")


def metrics():
    return Metrics(
        {"attn/entropy/mean": 1.5, "attn/x": math.nan}, rows=ROWS, alerts=[ALERT], loss=2.0
    )


def test_json_lines(tmp_path):
    logger = JSONLines(tmp_path / "new" / "run.jsonl")
    logger(metrics(), 3)
    logger({"a": 1.0}, 4)
    first, second = map(json.loads, (tmp_path / "new" / "run.jsonl").read_text().splitlines())
    assert first == {
        "step": 3, "attn/entropy/mean": 1.5, "attn/x": None, "loss": 2.0,
        "alerts": ["logits reached 60"],
    }  # fmt: skip
    assert second == {"step": 4, "a": 1.0}


def test_tensorboard_holds_scalars_images_and_alarms(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoard(tmp_path)
    logger(metrics(), 3)
    logger.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    (scalar,) = events.Scalars("attn/entropy/mean")
    assert (scalar.step, scalar.value) == (3, 1.5)
    for name in PICTURED:
        (picture,) = events.Images(f"attn/heads/{name}")
        assert (picture.width, picture.height) == (4 * CELL, 2 * CELL)
    assert "attn/alerts/text_summary" in events.Tags()["tensors"]


def test_tensorboard_lists_hyperparameters_beside_the_means(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    logger = TensorBoard(tmp_path, hparams={"lr": 3e-4, "schedule": "cosine"})
    for step in (3, 6):
        logger(metrics(), step)
    logger.close()
    found = EventAccumulator(str(tmp_path)).Reload().SummaryMetadata
    start = found("_hparams_/session_start_info").plugin_data.content
    settings = metadata.parse_session_start_info_plugin_data(start).hparams
    assert settings["lr"].number_value == 3e-4
    assert settings["schedule"].string_value == "cosine"
    assert (settings["attn/layers"].number_value, settings["attn/heads"].number_value) == (2, 8)
    experiment = metadata.parse_experiment_plugin_data(
        found("_hparams_/experiment").plugin_data.content
    )
    assert [info.name.tag for info in experiment.metric_infos] == ["attn/entropy/mean"]
    assert found("_hparams_/session_end_info").plugin_data.content


def test_a_writer_without_files_gets_no_hyperparameters():
    calls = []

    class Writer:
        def add_scalar(self, *given):
            calls.append(given)

        def flush(self):
            calls.append("flush")

    logger = TensorBoard(Writer())
    logger({"a": 1.0}, 5)
    logger.close()
    assert calls == [("a", 1.0, 5), "flush"]


def test_tracker_calls_log():
    calls = []

    class Wandb:
        def log(self, metrics, step):
            calls.append((metrics, step))

    Tracker(Wandb())({"a": 1.0}, 5)
    assert calls == [({"a": 1.0}, 5)]


def test_wandb_itself_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = wandb.init(mode="offline", project="attentropy", dir=str(tmp_path))
        logger = Tracker(run)
        logger(metrics(), 50)
        logger({"attn/entropy/mean": 1.4}, 100)  # a step is done when the next one comes
        summary = dict(run.summary)
        run.finish()
    assert summary["attn/entropy/mean"] == 1.5
    assert summary["_step"] == 50
    assert list(tmp_path.rglob("run-*.wandb"))


def test_trackio_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trackio = pytest.importorskip("trackio")
        run = trackio.init(project="attentropy", name="run", embed=False)
        Tracker(trackio)(metrics(), 50)
        run.finish()
    (file,) = tmp_path.rglob("attentropy.db")
    with contextlib.closing(sqlite3.connect(file)) as store:
        ((step, text),) = store.execute("SELECT step, metrics FROM metrics").fetchall()
    assert step == 50
    assert json.loads(text)["attn/entropy/mean"] == 1.5


def test_bad_arguments():
    with pytest.raises(ArgumentTypeError, match="TensorBoard: writer must be a directory"):
        TensorBoard(3)
    with pytest.raises(ArgumentTypeError, match="TensorBoard: hparams must be numbers.*lr = \\[1"):
        TensorBoard("runs", hparams={"lr": [1]})
    with pytest.raises(ArgumentTypeError, match="Tracker: tracker must be something with log"):
        Tracker("wandb")
