"""The served page over a real socket, on loopback."""

import json
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from click.testing import CliRunner

from attentropy.cli import main
from attentropy.cli.models.serve import is_model
from attentropy.scans.store import save
from tests.report.synthetic import make_scan

pytest.importorskip("uvicorn")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fetch(address: str) -> bytes:
    for _ in range(600):  # a busy machine takes its time to import
        try:
            with urllib.request.urlopen(address, timeout=60) as answer:
                return answer.read()
        except ConnectionError:
            time.sleep(0.1)
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionError):
                raise
            time.sleep(0.1)
    raise AssertionError("the server did not start")


def test_it_serves_on_loopback(tmp_path):
    save(tmp_path, make_scan(layers=2, heads=2))
    port = free_port()
    code = "from attentropy.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", str(tmp_path), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        try:
            found = json.loads(fetch(f"http://127.0.0.1:{port}/api/list"))
            assert found["entries"][0]["name"] == "synthetic-decoder"
            assert b"synthetic-decoder" in fetch(f"http://127.0.0.1:{port}/scan/scan.json")
        finally:
            server.terminate()
            server.communicate(timeout=20)


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path):
    result = CliRunner().invoke(main, ["serve", str(tmp_path / "absent")])
    assert result.exit_code == 2
    assert "DIR must be a folder, got" in result.stderr


def test_a_model_and_a_folder_are_told_apart(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert not is_model(None, given=[])
    assert is_model(None, given=["prompt"])
    assert not is_model(str(tmp_path / "runs"), given=["prompt"])
    assert is_model(str(tmp_path / "model"), given=[])
    assert is_model("my.gguf", given=[])
    assert is_model("package.module:make", given=[])
    assert not is_model(str(tmp_path / "absent"), given=[])


def test_a_text_for_a_folder_is_one_sentence(tmp_path):
    result = CliRunner().invoke(main, ["serve", str(tmp_path), "--prompt", "a b"])
    assert result.exit_code == 2
    assert "--prompt is for a model, and" in result.stderr


def test_it_serves_a_model(monkeypatch):
    testclient = pytest.importorskip("starlette.testclient")
    served = []
    monkeypatch.setattr("attentropy.report.listening.serve", lambda app, _: served.append(app))
    result = CliRunner().invoke(main, ["serve", "--prompt", "To be, or", "--port", "0"])
    assert result.exit_code == 0, result.output
    assert "Serving attentropy-embedded at http://127.0.0.1:" in result.stdout
    client = testclient.TestClient(served[0], base_url="http://127.0.0.1")
    found = client.get("/api/row/1.0/3").json()
    assert sum(weight for _, weight in found["keys"]["rows"]) == pytest.approx(1.0)
