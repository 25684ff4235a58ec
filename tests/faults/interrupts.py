"""Commands that are interrupted, or have too little memory: files stay valid, the end is a sentence."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults.outcome import Outcome

LONG = {
    "scan": ("scan", "--lengths", "64,128,256", "--tokens-per-length", "4096", "--out", "{out}"),
    "calibrate": ("scan", "--lengths", "128,256", "--calibrate", "--quick", "--out", "{out}"),
    "extend": ("extend", "--to", "256", "--out", "{out}"),
    "text": ("text", "--prompt", "the words of a sentence", "--out", "{out}"),
    "lab": ("lab", "scales", "--quick", "--out", "{out}"),
}
LIMITED = "import resource, runpy, sys; n = int(sys.argv.pop(1)); \
resource.setrlimit(resource.RLIMIT_AS, (n, n)); runpy.run_module('attentropy', run_name='__main__')"


def _command(words: Sequence[str], out: Path) -> list[str]:
    return [word.format(out=out) for word in words]


def interrupts(folder: Path, count: int, draw: random.Random) -> Outcome:
    """SIGINT at a random moment of each long command: it ends as interrupted or done, no file half written."""
    found = Outcome(f"Ctrl-C during {', '.join(LONG)}")
    for i in range(count):
        name = list(LONG)[i % len(LONG)]
        out = folder / f"{name}{i}"
        command = [sys.executable, "-m", "attentropy", *_command(LONG[name], out)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder
        ) as process:
            time.sleep(1.0 + 6.0 * draw.random())
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=120)[0]
        found.note(_wrong(name, out, process.returncode, said))
    return found


def _wrong(name: str, out: Path, code: int, said: str) -> str | None:
    """What is wrong after an interrupted command, if anything."""
    if code not in (0, 130, -signal.SIGINT):  # a shell shows the last as 130
        return f"{name}: exit code {code}: {said[-300:]}"
    if "Traceback" in said:
        return f"{name}: a traceback: {said[-300:]}"
    return next((f"{name}: {path.name} is damaged" for path in _damaged(out)), None)


def _damaged(out: Path) -> list[Path]:
    wrong = list(out.rglob("*.part"))
    for path in out.rglob("*.json"):
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            wrong.append(path)
    return wrong


def little_memory(folder: Path, count: int, draw: random.Random) -> Outcome:
    """An address space too small for a scan: a sentence or a result, never half a file."""
    found = Outcome("too little memory for a scan (RLIMIT_AS)")
    for i in range(count):
        room = int((1.2 + 3.0 * draw.random()) * 1e9)
        out = folder / f"memory{i}"
        words = ["scan", "--lengths", "64,512", "--quick", "--out", str(out)]
        command = [sys.executable, "-c", LIMITED, str(room), *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
        half = [path.name for path in _damaged(out)] if out.exists() else []
        whole = done.returncode == 0 or done.returncode > 0
        found.note(None if whole and not half else f"{room}: exit {done.returncode}, {half}")
    return found
