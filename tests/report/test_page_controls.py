"""Every control of the pages, at three widths, light and dark: what is chosen is in the address."""

import csv
import io
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from attentropy.report import run_page, scan_page
from attentropy.report.comparison import NamedRun, NamedScan, comparison_page
from attentropy.report.payload import scan_payload
from attentropy.training.alarms import Alert
from tests.report.synthetic import make_scan
from tests.report.synthetic_run import make_run

WIDE, MIDDLE, NARROW = 1440, 1024, 390
EVERY = [(width, scheme) for width in (WIDE, MIDDLE, NARROW) for scheme in ("light", "dark")]


def looks(*quick):
    """All widths and schemes; the normal tier looks at a few."""
    slow = [pytest.param(*one, marks=pytest.mark.slow) for one in EVERY if one not in quick]
    return pytest.mark.parametrize(("width", "scheme"), [*quick, *slow])


OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def collapsing(times=14):
    """A run whose collapse spreads from head to head, alert after alert."""
    alerts = [
        Alert(
            1900 + 50 * i, "entropy collapse", "critical", ((i % 6, i % 8),), "H / log n below 0.05"
        )
        for i in range(times)
    ]
    return msgspec.structs.replace(make_run(), alerts=alerts)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    scans = [NamedScan(f"step {n}", make_scan(sharpen=1 - n / 100)) for n in (0, 20, 40)]
    runs = [NamedRun("one", make_run()), NamedRun("two", make_run(samples=40))]
    made = {
        "scan": scan_page(make_scan(), make_scan(name="sharper", sharpen=0.7)),
        "run": run_page(collapsing()),
        "compare": comparison_page(scans),
        "runs": comparison_page(runs),
        "mixed": comparison_page([NamedScan("scan", make_scan()), runs[0]]),
    }
    for name, text in made.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def show(open_page, pages):
    def start(name, width=WIDE, scheme="light"):
        opened = open_page(pages / f"{name}.html", color_scheme=scheme, accept_downloads=True)
        opened.page.set_viewport_size({"width": width, "height": 900})
        opened.page.wait_for_timeout(200)  # charts are drawn again
        return opened

    return start


def chosen(opened):
    """What the address says, by name."""
    return {key: one for key, (one,) in parse_qs(urlsplit(opened.page.url).fragment).items()}


def again(opened):
    """The same address in a page that is loaded anew."""
    opened.page.goto(opened.page.url)
    opened.page.reload()
    opened.page.wait_for_selector("html[data-ready=true]")


@looks((NARROW, "dark"))
def test_a_scan_is_restored_from_its_address(show, width, scheme):
    opened = show("scan", width, scheme)
    page = opened.page
    page.select_option("#statistic", "slope")
    page.get_by_role("radio", name="64", exact=True).click()
    page.get_by_role("radio", name="sharper").click()
    page.mouse.click(*opened.cell(3, 2))
    expected = {"statistic": "slope", "length": "64", "show": "other", "head": "3.2"}
    assert chosen(opened) == expected
    colours = opened.colours()
    again(opened)
    assert opened.colours() == colours
    assert page.locator("#profile-title").inner_text() == "Layer 3 · head 2"
    assert page.input_value("#statistic") == "slope"
    page.go_back()
    page.go_back()
    page.go_back()
    assert chosen(opened).keys() <= {"statistic", "length"}
    page.go_forward()
    assert page.evaluate(OVERFLOW) <= 0
    assert opened.errors == []


@looks()
def test_a_tab_is_in_the_address_and_starts_at_its_top(show, width, scheme):
    opened = show("scan", width, scheme)
    page = opened.page
    page.evaluate("scrollTo(0, 900)")
    assert page.evaluate("scrollY") > 0
    page.get_by_role("tab", name="Methods").click()
    assert page.evaluate("scrollY") == 0
    assert chosen(opened) == {"tab": "methods"}
    page.get_by_role("tab", name="Length").click()
    page.go_back()
    assert page.locator("#page-methods").is_visible()
    page.go_forward()
    assert page.locator("#page-length").is_visible()
    page.goto(page.url.split("#")[0] + "#methods")  # how tabs were written before
    assert page.locator("#page-methods").is_visible()
    for tab in ("Length", "Compare", "Methods"):
        page.get_by_role("tab", name=tab).click()
        assert page.evaluate(OVERFLOW) <= 0
    assert opened.errors == []


@looks()
def test_heads_are_found_limited_and_sorted(show, width, scheme):
    opened = show("scan", width, scheme)
    page = opened.page
    page.fill("#search", "4.6")
    assert opened.faded() == 47
    page.press("#search", "Enter")
    assert page.locator("#profile-title").inner_text() == "Layer 4 · head 6"
    page.fill("#search", make_scan().layers[2].layer)
    assert opened.faded() == 40
    assert "8 heads" in page.locator(".filter-note").first.inner_text()
    page.get_by_role("button", name="show all").click()
    page.select_option("#statistic", "entropy")
    page.fill("#range-low", "2")
    left = 48 - opened.faded()
    page.locator("details.heads summary").click()
    page.locator("#heads tbody tr").first.wait_for()  # drawn when the table opens
    assert page.locator("#heads tbody tr").count() == left
    page.locator("[data-sort=entropy]").click()
    values = [float(text) for text in page.locator("#heads tbody tr").locator(
        "td:nth-child(3)").all_inner_texts()]  # fmt: skip
    assert values == sorted(values, reverse=True)
    assert min(values) >= 2
    page.locator("#heads tbody tr").nth(1).click()
    head = page.locator("#heads tbody tr").nth(1).locator("td").first.inner_text()
    assert chosen(opened) == {
        "statistic": "entropy", "low": "2", "sort": "-entropy", "heads": "table", "head": head,
    }  # fmt: skip
    again(opened)
    assert page.locator("#heads tbody tr").count() == left
    assert page.evaluate(OVERFLOW) <= 0
    assert opened.errors == []


def saved(page, button):
    with page.expect_download() as download:
        button.click()
    return download.value.suggested_filename, download.value.path().read_bytes()


@looks((WIDE, "light"))
def test_figures_and_tables_are_saved(show, width, scheme):
    from PIL import Image

    opened = show("scan", width, scheme)
    page = opened.page
    card = page.get_by_role("region", name="Heads", exact=True)
    name, svg = saved(page, card.get_by_role("button", name="as SVG"))
    assert name == "synthetic-decoder-normalised-entropy.svg"
    assert svg.startswith(b"<svg xmlns=")
    assert svg.rstrip().endswith(b"</svg>")
    assert b"linearGradient" in svg
    name, png = saved(page, card.get_by_role("button", name="as PNG"))
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    assert picture.width > 300
    assert len(picture.getcolors(1 << 24)) > 40
    page.wait_for_selector("#profile canvas[data-painted=true]")
    name, png = saved(page, page.get_by_role("button", name="Save Attention map as PNG"))
    assert name == "synthetic-decoder-attention-map.png"
    assert len(Image.open(io.BytesIO(png)).convert("RGB").getcolors(1 << 24)) > 10
    page.locator("details.heads summary").click()
    name, text = saved(page, page.get_by_role("button", name="Save all heads as CSV"))
    rows = list(csv.DictReader(io.StringIO(text.decode())))
    assert len(rows) == 48
    home = scan_payload(make_scan())["scan"]["home"]
    table = make_scan().measures[home].table("entropy")
    assert float(rows[9]["entropy"]) == pytest.approx(table[1][1], rel=1e-4)
    page.get_by_role("tab", name="Length").click()
    name, text = saved(page, page.get_by_role("button", name="Save Lengths as CSV"))
    assert text.decode().splitlines()[0].startswith("Length,Sequences,Tokens")
    name, svg = saved(page, page.get_by_role("button", name="Save Growth of each head as SVG"))
    assert svg.count(b"<path") > 48
    assert opened.errors == []
    assert all(url.startswith(("file:", "data:", "blob:")) for url in opened.requests)


@looks()
def test_many_alerts_of_one_collapse_are_one_line(show, width, scheme):
    opened = show("run", width, scheme)
    page = opened.page
    assert page.locator(".finding").count() == 1
    assert "13 more alerts, 14 heads in all" in page.locator(".finding").inner_text()
    page.locator(".finding").click()
    assert chosen(opened) == {"alarm": "0", "step": "1900"}
    page.mouse.click(*opened.cell(2, 3))
    page.select_option("#statistic", "max_logit")
    expected = {"alarm": "0", "step": "1900", "head": "2.3", "statistic": "max_logit"}
    assert chosen(opened) == expected
    again(opened)
    assert page.locator("output").inner_text() == "step 1,900"
    assert page.locator(".finding").get_attribute("aria-pressed") == "true"
    page.go_back()
    page.go_back()
    assert "alarm" in chosen(opened)
    assert page.evaluate(OVERFLOW) <= 0
    assert opened.errors == []


@looks()
def test_a_page_of_many_alarms_is_not_stretched(show, open_page, tmp_path, width, scheme):
    names = [f"alarm {i}" for i in range(40)]
    alerts = [
        Alert(50 * i, name, "warning", ((0, 1),), "told " * 20) for i, name in enumerate(names)
    ]
    path = tmp_path / "run.html"
    path.write_text(run_page(msgspec.structs.replace(make_run(), alerts=alerts)), encoding="utf-8")
    opened = open_page(path, color_scheme=scheme)
    opened.page.set_viewport_size({"width": width, "height": 900})
    heights = opened.page.evaluate(
        "[...document.querySelectorAll('#page-run .columns > .card')].map(c => c.offsetHeight)"
    )
    assert max(heights) < 1000
    assert opened.page.locator(".finding").count() == 40


@looks()
def test_a_comparison_is_restored_from_its_address(show, width, scheme):
    opened = show("compare", width, scheme)
    page = opened.page
    page.select_option("#statistic", "sink_mass")
    page.locator("#scan").press("ArrowLeft")
    page.locator("#changes tbody tr").nth(2).click()
    head = page.locator("#head-title").inner_text()
    assert chosen(opened).keys() == {"statistic", "other", "head"}
    again(opened)
    assert page.locator("#head-title").inner_text() == head
    assert page.input_value("#other") == "1"
    assert page.locator(".slider output").inner_text() == "step 20"
    name, text = saved(page, page.locator("#changes").get_by_role("button", name="as CSV"))
    assert text.decode().splitlines()[0] == "Head,step 0,step 20,Change"
    page.fill("#search", "0.1")
    assert opened.faded() == 47
    assert page.locator("[aria-label='The chosen head'] .chart svg").count() == 2
    assert page.evaluate(OVERFLOW) <= 0
    assert opened.errors == []


@pytest.mark.parametrize("name", ["runs", pytest.param("mixed", marks=pytest.mark.slow)])
def test_runs_are_compared_too(show, name):
    opened = show(name)
    page = opened.page
    rows = page.locator("#changes tbody tr")
    assert rows.count() == 48
    rows.nth(5).click()
    assert "head" in chosen(opened)
    if name == "runs":
        page.locator("#place").fill("3")
        assert page.locator(".place").inner_text() == "step 150"
        assert chosen(opened)["length"] == "150"
    assert page.locator("[role=tabpanel] .chart svg").count() >= 3
    assert opened.errors == []
