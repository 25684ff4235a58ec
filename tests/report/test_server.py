"""The served folder: lists, pages, fresh numbers; nothing outside, nothing written."""

import json
import os

import pytest

from attentropy.core.errors import ArgumentError
from attentropy.report import server
from attentropy.scans.store import save
from tests.report.synthetic import make_scan
from tests.report.synthetic_run import make_run, write_run

testclient = pytest.importorskip("starlette.testclient")

EVIL = "<script>alert(1)</script>"


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "served"
    for name in ("first", "second/deeper"):
        (root / name).mkdir(parents=True)
    save(root / "first", make_scan(layers=2, heads=2, name="first model"))
    stopped = make_scan(layers=2, heads=2, name=EVIL)
    stopped.complete = False
    save(root / "second" / "deeper", stopped)
    write_run(root / "pilot.db", make_run(layers=2, heads=2, samples=10))
    (root / "notes.txt").write_text("private")
    (tmp_path / "scan.json").write_text("secret")
    return root


@pytest.fixture
def client(folder):
    return testclient.TestClient(server.application(folder), base_url="http://127.0.0.1")


def test_list_names_scans_and_runs(client):
    found = client.get("/api/list").json()["entries"]
    assert {(one["kind"], one["id"]) for one in found} == {
        ("scan", "first/scan.json"),
        ("scan", "second/deeper/scan.json"),
        ("run", "pilot.db"),
    }
    running = {one["id"]: one["running"] for one in found}
    assert running["second/deeper/scan.json"]
    assert not running["first/scan.json"]


def test_pages_are_reports_and_escape_names(client):
    index = client.get("/")
    assert index.status_code == 200
    assert EVIL not in index.text
    scan = client.get("/scan/second/deeper/scan.json")
    assert EVIL not in scan.text
    assert 'data-live="/api/scan/second/deeper/scan.json"' in scan.text
    assert 'data-live=""' in client.get("/scan/first/scan.json").text
    assert 'data-live="/api/run/pilot.db"' in client.get("/run/pilot.db").text


def test_fresh_numbers_of_a_run_and_stamp_of_a_scan(client, folder):
    assert client.get("/api/run/pilot.db").json()["run"]["steps"][-1] == 450
    first = client.get("/api/scan/first/scan.json").json()["stamp"]
    save(folder / "first", make_scan(layers=3, heads=2))
    assert client.get("/api/scan/first/scan.json").json()["stamp"] != first


@pytest.mark.parametrize(
    "path",
    [
        "/scan/../scan.json",
        "/scan/%2e%2e/scan.json",
        "/scan/..%2fscan.json",
        "/scan//etc/passwd",
        "/scan/first/../../scan.json",
        "/scan/notes.txt",
        "/run/first/scan.json",
        "/api/run/%2e%2e%2fscan.json",
        "/notes.txt",
    ],
)
def test_nothing_else_can_be_read(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert "secret" not in answer.text
    assert "private" not in answer.text


def test_links_are_not_followed(client, folder, tmp_path):
    os.symlink(tmp_path, folder / "out")
    os.symlink(tmp_path / "scan.json", folder / "first" / "linked.scan.json")
    assert len(client.get("/api/list").json()["entries"]) == 3
    assert client.get("/scan/out/scan.json").status_code == 404
    assert client.get("/scan/first/linked.scan.json").status_code == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_it_only_reads(client, method):
    assert client.request(method, "/scan/first/scan.json").status_code == 405


def test_a_name_that_resolves_here_is_refused(folder):
    app = server.application(folder)
    stranger = testclient.TestClient(app, base_url="http://rebound.example")
    assert stranger.get("/api/list").status_code == 400
    open_app = server.application(folder, host="0.0.0.0")
    anyone = testclient.TestClient(open_app, base_url="http://box.example")
    assert anyone.get("/api/list").status_code == 200


def test_a_broken_file_says_why_and_spoils_nothing(client, folder):
    (folder / "first" / "scan.json").write_text(json.dumps({"format": "other"}))
    shown = {one["id"]: one for one in client.get("/api/list").json()["entries"]}
    assert shown["first/scan.json"]["headline"].startswith("Cannot be read: first/scan.json")
    answer = client.get("/scan/first/scan.json")
    assert answer.status_code == 422
    assert "is not a file of attentropy.scan" in answer.text


def test_responses_forbid_framing_and_sniffing(client):
    headers = client.get("/").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cache-control"] == "no-store"


def test_what_is_no_folder_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="DIR must be a folder, got"):
        server.application(tmp_path / "absent")


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("box", False)],
)
def test_loopback_is_recognised(host, local):
    assert server.is_loopback(host) is local
