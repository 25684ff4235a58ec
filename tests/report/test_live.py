"""The served text: its page, heads and rows, and what is refused."""

import json
import threading
import time

import pytest
import torch

from attentropy.report.live import live_application, parsed
from attentropy.scans.texts.live import LiveText
from attentropy.scans.texts.reading import of_text
from tests.scans.small_llama import llama

testclient = pytest.importorskip("starlette.testclient")
EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def text():
    ids = torch.randint(97, (30,), generator=torch.Generator().manual_seed(5))
    return LiveText(of_text(llama(), ids, label=lambda token: f" w{token}"))


@pytest.fixture
def client(text):
    app = live_application(text, name=EVIL)
    return testclient.TestClient(app, base_url="http://127.0.0.1")


def test_rows_of_any_head(client, text):
    found = client.get("/api/row/1.4/20")
    assert found.status_code == 200
    assert found.headers["cache-control"] == "no-store"
    assert found.json() == json.loads(json.dumps(text.look((1, 4), 20)))
    assert client.get("/api/head/1.4").json() == text.head((1, 4))


def test_the_page_escapes_names_and_asks_its_own_server_only(client):
    page = client.get("/")
    assert EVIL not in page.text
    assert "connect-src 'self'" in page.text.replace("&#x27;", "'")


@pytest.mark.parametrize(
    "path",
    ["/api/row/2.0/1", "/api/row/1.9/1", "/api/row/1.4/30", "/api/row/1.4/-1", "/api/row/1.4/x",
     "/api/row/x/1", "/api/head/1", "/api/head/1.4.2", "/api/head/9999999999.1", "/etc/passwd"],
)  # fmt: skip
def test_what_is_not_there_is_not_found(client, path):
    assert client.get(path).status_code == 404


def test_other_hosts_and_methods_are_refused(text, client):
    assert client.get("/", headers={"host": "evil.org"}).status_code == 400
    assert client.post("/api/row/1.4/20").status_code == 405


def test_heads_are_parsed():
    assert parsed("12.3") == (12, 3)
    assert parsed("1.-2") is None


@pytest.mark.whole
def test_the_page_loads_rows_on_demand(browser, text):
    uvicorn = pytest.importorskip("uvicorn")
    config = uvicorn.Config(live_application(text, name="m"), port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    page = browser.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        page.goto(f"http://127.0.0.1:{port}/#scope=1.4&token=20")
        page.wait_for_selector('#text[data-painted="1.4 20 keys entropy"]')
        rows = page.locator("#looks-keys .look")
        places = [int(rows.nth(i).get_attribute("data-token")) for i in range(rows.count())]
        assert places == [place for place, _ in text.look((1, 4), 20)["keys"]["rows"]]
        assert page.locator("#head option").count() == 12 + 3
        page.keyboard.press("]")
        page.wait_for_selector('#text[data-painted="1.5 20 keys entropy"]')
    finally:
        page.close()
        server.should_exit = True
        thread.join(timeout=20)
    assert errors == []
