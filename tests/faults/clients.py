"""Crowds, slow and silent clients of `attentropy serve`: others are answered, and it ends."""

import random
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from attentropy.training.runstore import RunStore
from tests.faults.outcome import Outcome
from tests.faults.soak import resident
from tests.faults.stores import sample


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _answers(port: int) -> bool:
    for _ in range(60):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/list", timeout=15) as page:
                return page.status == 200
        except OSError:
            time.sleep(0.5)
    return False


def clients(folder: Path, count: int, draw: random.Random) -> Outcome:
    """`count` clients that are silent, slow, or leave: another is answered, and Ctrl-C ends it."""
    found = Outcome("clients of the server: silent, slow, gone")
    store = RunStore(folder / "run.db")
    for step in range(200):
        store(sample(float(step)), step)
    store.close()
    port = _port()
    command = [sys.executable, "-m", "attentropy", "serve", str(folder), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        ready = _answers(port)
        before = resident(server.pid)
        crowd = [_client(port, i % 3) for i in range(count)]
        found.note(None if ready else "the server never answered")
        found.note(None if _answers(port) else f"nobody is answered beside {count} clients")
        grown = resident(server.pid) - before
        found.note(None if grown < 100 else f"the server grew by {grown:.0f} MB")
        server.terminate()
        began = time.monotonic()
        server.wait(30)
        late = time.monotonic() - began
        found.note(None if late < 5 else f"the server ended after {late:.1f} s")
    for client in crowd:
        if client is not None:
            client.close()
    return found


def _client(port: int, kind: int) -> socket.socket | None:
    """One that says nothing, one that asks half, one that asks and leaves; None if turned away."""
    try:
        client = socket.create_connection(("127.0.0.1", port), timeout=10)
        if kind:
            client.sendall(b"GET /run/run.db HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        if kind == 2:
            client.sendall(b"\r\n")
            client.close()
        return client
    except OSError:
        return None
