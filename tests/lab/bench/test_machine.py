import datetime
import os
import platform

import torch

from attentropy import __version__
from attentropy.lab.bench import machine


def test_a_timing_can_be_read_by_it():
    found = machine.describe()
    assert datetime.date.fromisoformat(found["date"]) <= datetime.date.today()
    assert (found["torch"], found["attentropy"]) == (torch.__version__, __version__)
    assert (found["cores"], found["threads"]) == (os.cpu_count(), torch.get_num_threads())
    assert found["cpu"]


def test_the_processor_is_named_by_linux_or_by_python(tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    monkeypatch.setattr(machine, "Path", lambda _: info)
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert machine.describe()["cpu"] == platform.machine()
    info.write_text("processor : 0\nmodel name\t: A CPU: fast\n")
    assert machine.describe()["cpu"] == "A CPU: fast"
