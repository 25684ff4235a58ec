import json

import pytest

from attentropy.extensions.candidates import Setting, Task
from attentropy.extensions.reading import Attempt
from attentropy.extensions.record import ExtensionError, Record
from attentropy.models.losses.buckets import Bucket
from attentropy.models.rope import settings

TASK = Task(model="x", trained=64, to=96, layers={"a": 2})


def record():
    bucket = Bucket(start=1, stop=96, loss=3.0, error=None)
    trial = Attempt(candidate="y", window=1, losses=(3.0,), buckets=(bucket,), hits=(True,))
    return Record(
        task=TASK,
        text="0",
        last=32,
        candidates=[Setting(name="y", rope=settings.yarn(trained=64, to=96))],
        trials=[trial, Attempt(candidate="y", window=0, losses=(2.0,), buckets=())],
    )


def test_a_record_survives_its_file(tmp_path):
    path = tmp_path / "extend.json"
    path.write_bytes(record().encoded())
    assert Record.load(path) == record()
    data = json.loads(path.read_text())
    assert (data["format"], data["version"]) == ("attentropy.extension", 1)
    data["version"] = 7
    path.write_text(json.dumps(data))
    with pytest.raises(ExtensionError, match="version 7 of attentropy.extension; this attentropy"):
        Record.load(path)


def test_trials_come_in_the_order_of_texts():
    one = record()
    assert [trial.window for trial in one.of("y")] == [0, 1]
    assert one.candidate("y").rope.factor == 1.5
    one.note("so")
    one.note("so")
    assert one.notes == ["so"]
