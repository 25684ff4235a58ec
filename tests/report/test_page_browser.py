"""The report in a real browser, from disk, with the network off."""

import io
import math
import time

import msgspec
import pytest

from attentropy.report import run_page, scan_page
from attentropy.scans import schema
from tests.report.synthetic import change_heads, make_scan
from tests.report.synthetic_run import make_run

EVIL = '<script>window.hacked=1</script><img src=x onerror="window.hacked=1">'


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(scan_page(make_scan()), encoding="utf-8")
    return path


def test_opens_without_a_complaint_or_a_request(open_page, report):
    opened = open_page(report)
    assert opened.errors == []
    assert opened.requests == [report.as_uri()] + [u for u in opened.requests if u == "data:,"]
    assert "Attention" in opened.page.locator("h1").inner_text()


def test_heatmap_has_a_cell_for_every_head(open_page, report):
    opened = open_page(report)
    assert len([c for c in opened.colours() if c and c.startswith("rgb")]) >= 6 * 8


def test_switching_the_statistic_and_the_length_repaints(open_page, report):
    opened = open_page(report)
    seen = {tuple(opened.colours())}
    for key in ("max_logit", "density", "output_norm", "gradient_flow", "entropy"):
        opened.page.select_option("#statistic", key)
        seen.add(tuple(opened.colours()))
    opened.page.get_by_role("radio", name="64", exact=True).click()
    seen.add(tuple(opened.colours()))
    assert len(seen) == 7
    assert opened.errors == []


def test_clicking_a_head_opens_its_profile(open_page, report):
    opened = open_page(report)
    opened.page.mouse.click(*opened.cell(5, 3))
    assert opened.page.locator("#profile-title").inner_text() == "Layer 5 · head 3"
    opened.page.wait_for_selector("#profile canvas[data-painted=true]")
    assert opened.page.locator("#profile .chart svg").count() == 3
    opened.page.get_by_role("button", name="Next head").click()
    assert opened.page.locator("#profile-title").inner_text() == "Layer 5 · head 4"
    assert opened.errors == []


def test_keyboard_alone_reaches_a_head(open_page, report):
    opened = open_page(report)
    opened.page.focus(".heatmap")
    for key in ("ArrowRight", "ArrowDown", "ArrowDown"):
        opened.page.keyboard.press(key)
    said = opened.page.locator("#announcer").inner_text()
    opened.page.keyboard.press("Enter")
    title = opened.page.locator("#profile-title").inner_text()
    assert said.startswith(title)
    opened.page.focus("#tab-overview")
    opened.page.keyboard.press("ArrowRight")
    assert opened.page.locator("#page-length").is_visible()


def test_a_finding_filters_the_heatmap_and_lets_go(open_page, report):
    scan = make_scan()
    opened = open_page(report)
    assert opened.faded() == 0
    finding = scan.findings[0]
    button = opened.page.locator(f'[data-finding="{finding.name}"]')
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert opened.faded() == 6 * 8 - len(finding.heads)
    opened.page.get_by_role("button", name="show all").click()
    assert opened.faded() == 0


def test_every_page_draws(open_page, report):
    opened = open_page(report)
    for tab, charts in (("Length", 4), ("Methods", 0)):
        opened.page.get_by_role("tab", name=tab).click()
        opened.page.wait_for_timeout(100)
        visible = opened.page.locator("[role=tabpanel]:visible .chart svg")
        assert visible.count() == charts
    assert "Σⱼ" in opened.page.locator("#page-methods").inner_text()
    assert "Coverage" in opened.page.locator("#page-methods").inner_text()
    assert opened.page.locator("#page-methods td", has_text="verified").count() > 0
    assert opened.errors == []


def test_names_are_text_wherever_they_come_from(open_page, tmp_path):
    scan = make_scan(name=EVIL)
    scan.model.source = scan.model.note = scan.command = scan.call = EVIL
    scan.input.description = scan.input.tokenizer = EVIL
    scan.input.files = [EVIL]
    for measure in scan.measures:
        change_heads(measure, layer=lambda row: EVIL if row.index == 0 else row.layer)
    scan.skipped = [schema.Skipped(length=9999, reason=EVIL)]
    scan.findings = [
        msgspec.structs.replace(finding, name=EVIL, evidence=EVIL, advice=EVIL)
        for finding in scan.findings
    ]
    scan.advice = [schema.Advice(text=EVIL, call=EVIL)]
    scan.maps.labels = [EVIL] * len(scan.maps.labels)
    path = tmp_path / "report.html"
    path.write_text(scan_page(scan, make_scan(name=EVIL)), encoding="utf-8")
    opened = open_page(path)
    opened.page.mouse.move(*opened.cell(0, 0))
    opened.page.mouse.click(*opened.cell(0, 0))
    opened.page.wait_for_selector("#profile canvas[data-painted=true]")
    opened.page.hover("#profile canvas")
    for tab in ("Length", "Compare", "Methods", "Overview"):
        opened.page.get_by_role("tab", name=tab).click()
    opened.page.wait_for_timeout(200)
    assert opened.page.evaluate("window.hacked") is None
    assert opened.page.evaluate("document.images.length") == 0
    assert opened.page.evaluate("document.scripts.length") == 4
    assert opened.page.locator(".top-model").inner_text() == EVIL
    assert opened.page.title() == f"{EVIL} · attention scan"
    assert opened.errors == []


def test_a_script_that_gets_in_may_not_run(open_page, report):
    opened = open_page(report)
    opened.page.evaluate(
        """() => { const s = document.createElement("script"); s.textContent = "window.hacked = 1";
                   document.body.append(s); }"""
    )
    assert opened.page.evaluate("window.hacked") is None
    refused = opened.page.evaluate("fetch('https://example.org').then(() => 'sent', () => 'no')")
    assert refused == "no"
    assert any("Content Security Policy" in error for error in opened.errors)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_screenshot_is_not_blank(open_page, report, scheme):
    from PIL import Image

    opened = open_page(report, color_scheme=scheme)
    image = Image.open(io.BytesIO(opened.page.screenshot())).convert("RGB")
    counts = sorted(image.getcolors(maxcolors=1 << 24), reverse=True)
    assert len(counts) > 200
    brightness = sum(counts[0][1]) / 3
    assert brightness > 200 if scheme == "light" else brightness < 60


def test_theme_button_switches_and_print_is_light(open_page, report):
    opened = open_page(report, color_scheme="dark")
    theme = "document.documentElement.dataset.theme"
    assert opened.page.evaluate(theme) == "dark"
    assert len(opened.page.pdf()) > 20_000
    opened.page.get_by_role("button", name="Switch between light and dark").click()
    assert opened.page.evaluate(theme) == "light"
    assert opened.errors == []


def test_a_large_scan_is_small_enough_and_opens_at_once(open_page, tmp_path):
    scan = make_scan(layers=30, heads=9, lengths=(64, 128, 256, 512, 1024, 2048), trained=512)
    path = tmp_path / "large.html"
    path.write_text(scan_page(scan), encoding="utf-8")
    assert path.stat().st_size < 2_000_000
    began = time.perf_counter()
    opened = open_page(path)
    # 2 s are asked for, and 1 s was measured; machines that run tests are busy
    assert time.perf_counter() - began < 8
    assert opened.errors == []


def test_compare_shows_the_difference(open_page, tmp_path):
    path = tmp_path / "report.html"
    page = scan_page(make_scan(), make_scan(name="sharper", sharpen=0.7))
    path.write_text(page, encoding="utf-8")
    opened = open_page(path)
    before = opened.colours()
    opened.page.get_by_role("radio", name="Difference").click()
    assert opened.colours() != before
    modes = opened.page.locator("#page-overview [aria-label=Compare] button")
    assert modes.all_inner_texts() == ["synthetic-decoder", "sharper", "Difference"]
    opened.page.get_by_role("tab", name="Compare").click()
    titles = opened.page.locator("#compare-changes th")
    assert titles.all_inner_texts() == ["Head", "sharper", "synthetic-decoder", "Change"]
    opened.page.locator("#compare-changes tbody tr").nth(3).click()
    name = opened.page.locator("#compare-changes tbody td").nth(12).inner_text()
    assert opened.page.locator("#compare-head-title").inner_text() == name
    assert opened.errors == []


def test_run_page_moves_with_the_step_and_jumps_to_an_alarm(open_page, tmp_path):
    path = tmp_path / "run.html"
    path.write_text(run_page(make_run()), encoding="utf-8")
    opened = open_page(path)
    last = opened.colours()
    opened.page.locator("#step").fill("0")
    assert opened.colours() != last
    opened.page.locator(".finding").nth(1).click()
    assert opened.page.locator("output").inner_text() == "step 2,350"
    assert opened.faded() == 6 * 8 - 2
    opened.page.mouse.click(*opened.cell(2, 3))
    assert opened.page.locator("#page-run .two .chart svg").count() == 4
    assert opened.errors == []


def test_a_run_that_broke_is_shown_as_it_last_was(open_page, tmp_path):
    run = make_run(samples=6)
    gone = [[[math.nan] * 8] * 6] * 2
    metrics = {key: [*tables[:4], *gone] for key, tables in run.metrics.items()}
    losses = [(0, 2.0), (50, 1e9), (100, math.nan)]
    path = tmp_path / "run.html"
    page = run_page(msgspec.structs.replace(run, metrics=metrics, losses=losses))
    path.write_text(page, encoding="utf-8")
    opened = open_page(path)
    assert opened.page.locator("output").inner_text() == "step 150"
    opened.page.locator("#step").fill("5")
    assert opened.page.locator("output").inner_text() == "step 250"
    assert opened.page.get_by_text("last finite value").is_visible()
    assert opened.errors == []


def test_empty_run_and_hostile_run_names(open_page, tmp_path):
    run = make_run(name=EVIL)
    none = msgspec.structs.replace(run, steps=[], metrics={"entropy": []}, losses=[], alerts=[])
    for index, one in enumerate((run, none)):
        path = tmp_path / f"{index}.html"
        path.write_text(run_page(one), encoding="utf-8")
        opened = open_page(path)
        assert opened.page.evaluate("window.hacked") is None
        assert opened.errors == []


def map_point(opened, row, column):
    """The middle of a cell of the opened head's attention map, in pixels of the window."""
    return opened.page.evaluate(
        """([row, column]) => {
            const node = document.querySelector("#profile canvas");
            node.scrollIntoView({ block: "center" });
            const box = node.getBoundingClientRect();
            const { left, top, count, edge } = node.dataset;
            const cell = (box.width - Number(edge)) / Number(count);
            return [box.left + Number(edge) + (column + 0.5 - Number(left)) * cell,
                    box.top + Number(edge) + (row + 0.5 - Number(top)) * cell];
        }""",
        [row, column],
    )


def test_the_map_zooms_to_single_weights_and_names_the_pair(open_page, tmp_path):
    scan = make_scan()
    scan.maps.length = scan.maps.side  # every cell is one weight
    scan.maps.labels = [f"w{i}" for i in range(scan.maps.side)]
    path = tmp_path / "report.html"
    path.write_text(scan_page(scan), encoding="utf-8")
    opened = open_page(path)
    opened.page.mouse.click(*opened.cell(2, 3))
    opened.page.wait_for_selector("#profile canvas[data-painted=true]")
    opened.page.mouse.move(*map_point(opened, 40, 10))
    reading = opened.page.locator("#profile .reading")
    assert reading.inner_text().startswith("query 40 “w40” → key 10 “w10”: about ")
    before = float(opened.page.get_attribute("#profile canvas", "data-count"))
    for _ in range(6):
        opened.page.mouse.wheel(0, -100)
    opened.page.wait_for_function(
        f"Number(document.querySelector('#profile canvas').dataset.count) < {before / 3}"
    )
    opened.page.mouse.move(*map_point(opened, 40, 10))
    assert reading.inner_text().startswith("query 40 “w40” → key 10 “w10”: about ")
    opened.page.focus("#profile canvas")
    for key in ("+", "+", "+", "+"):
        opened.page.keyboard.press(key)
    assert float(opened.page.get_attribute("#profile canvas", "data-count")) == 6
    opened.page.get_by_role("button", name="The whole map").click()
    assert float(opened.page.get_attribute("#profile canvas", "data-count")) == before
    assert opened.errors == []


def test_a_pooled_cell_is_never_called_one_pair(open_page, tmp_path):
    scan = make_scan()
    scan.maps.length = 4 * scan.maps.side
    path = tmp_path / "report.html"
    path.write_text(scan_page(scan), encoding="utf-8")
    opened = open_page(path)
    opened.page.mouse.click(*opened.cell(2, 3))
    opened.page.wait_for_selector("#profile canvas[data-painted=true]")
    opened.page.mouse.move(*map_point(opened, 40, 10))
    said = opened.page.locator("#profile .reading").inner_text()
    assert said.startswith("queries 160–163, keys 40–43: mean about ")
