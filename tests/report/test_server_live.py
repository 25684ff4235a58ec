"""A served page in a real browser follows a run that grows."""

import threading
import time

import pytest

from attentropy.report import server
from attentropy.scans.store import save
from tests.report.synthetic import make_scan
from tests.report.synthetic_run import make_run, write_run

uvicorn = pytest.importorskip("uvicorn")


@pytest.fixture
def served(tmp_path):
    """Start the server in a thread; gives its address."""
    config = uvicorn.Config(server.application(tmp_path), port=0, log_level="warning")
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    running.should_exit = True
    thread.join(timeout=10)


def test_a_running_run_is_refreshed(browser, served, tmp_path):
    write_run(tmp_path / "pilot.db", make_run(layers=2, heads=2, samples=20))
    page = browser.new_page()
    errors = []
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(served)
    page.get_by_text("pilot.db").click()
    page.wait_for_selector("html[data-ready=true]")
    assert page.locator("output").inner_text() == "step 950"
    write_run(tmp_path / "pilot.db", make_run(layers=2, heads=2, samples=60))
    page.get_by_text("step 2,950", exact=True).wait_for(timeout=15_000)
    assert page.locator(".heatmap svg").count() == 1
    assert errors == []
    page.close()


def test_the_list_grows_and_a_stopped_scan_reloads_when_it_is_done(browser, served, tmp_path):
    page = browser.new_page()
    page.goto(served)
    page.get_by_text("Nothing here yet").wait_for()
    scan = make_scan(layers=2, heads=2, name="growing")
    scan.complete = False
    save(tmp_path, scan)
    page.get_by_text("growing").click(timeout=15_000)
    page.get_by_text("stopped before its end").wait_for()
    time.sleep(2.5)  # the page has seen the first stamp by then
    scan.complete = True
    save(tmp_path, scan)
    page.get_by_text("stopped before its end").wait_for(state="detached", timeout=15_000)
    page.close()
