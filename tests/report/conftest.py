"""Chromium for the tests of the page, or a reason why it is not used."""

import os
import shutil

import pytest

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def _chromium() -> str | None:
    named = os.environ.get("ATTENTROPY_CHROMIUM")
    if named == "none":
        return None
    return named or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = _chromium()
    if path is None:
        pytest.skip("Chromium is not installed: the report was not tested in a browser")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield started
        started.close()


class Opened:
    """A page opened from disk with the network off, and everything it complained about."""

    def __init__(self, browser, path, **options) -> None:
        self.context = browser.new_context(
            offline=True, viewport={"width": 1440, "height": 1000}, **options
        )
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console",
            lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None,
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: self.errors.append(f"dialog {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready=true]", timeout=10_000)

    def cell(self, layer: int, head: int) -> tuple[float, float]:
        """Where the heatmap draws a head, in pixels of the window."""
        return tuple(
            self.page.evaluate(
                """([layer, head]) => {
                    const node = document.querySelector(".heatmap");
                    node.scrollIntoView({ block: "center" });
                    const box = node.getBoundingClientRect();
                    const plot = JSON.parse(node.dataset.plot);
                    return [box.left + plot.left + (layer + 0.5) * plot.cellWidth,
                            box.top + plot.top + (head + 0.5) * plot.cellHeight];
                }""",
                [layer, head],
            )
        )

    def colours(self) -> list[str]:
        """The fills of the heatmap's cells."""
        return self.page.evaluate(
            "[...document.querySelectorAll('.heatmap svg path')].map(p => p.getAttribute('fill'))"
        )

    def faded(self) -> int:
        """Cells of the heatmap that a filter pushed back."""
        return self.page.evaluate(
            "[...document.querySelectorAll('.heatmap svg path')]"
            ".filter(p => Number(p.getAttribute('fill-opacity') ?? 1) < 0.5).length"
        )


@pytest.fixture
def open_page(browser):
    opened = []

    def start(path, **options) -> Opened:
        opened.append(Opened(browser, path, **options))
        return opened[-1]

    yield start
    for page in opened:
        page.context.close()
