import subprocess
import sys

from attentropy.lab.bench import memory

HOLD = """
import time, torch
from attentropy.lab.bench import memory

def allocate():
    held = torch.ones(64 * 2**18)  # 64 MiB of float32, freed at the end
    time.sleep(0.05)
    del held

print(memory.peak_extra(allocate))
"""


def test_the_peak_is_what_a_call_holds_at_once():
    # a process of its own: what other tests have left to be freed would hide the peak
    done = subprocess.run([sys.executable, "-c", HOLD], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n" or 60 <= float(done.stdout) <= 140


def test_a_call_that_holds_nothing_needs_nothing():
    extra = memory.peak_extra(lambda: None)
    assert extra is None or extra < 16


def test_without_proc_nothing_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "none")
    called = []
    assert memory.peak_extra(lambda: called.append(1)) is None
    assert not called
