"""Scans side by side: the numbers, and the page in a browser."""

import pytest

from attentropy.core.errors import ArgumentError
from attentropy.report.comparison import (
    NamedScan,
    common_length,
    comparison_page,
    comparison_payload,
    head_changes,
)
from tests.report.synthetic import make_scan

EVIL = "<img src=x onerror=window.hacked=1>"
whole = pytest.mark.whole


@pytest.fixture(scope="module")
def scans():
    return [
        NamedScan(EVIL, make_scan()),
        NamedScan("half way", make_scan(sharpen=1.2)),
        NamedScan("end", make_scan(sharpen=1.5, lengths=(64, 128, 256))),
    ]


@pytest.fixture(scope="module")
def page(scans, tmp_path_factory):
    path = tmp_path_factory.mktemp("compare") / "compare.html"
    path.write_text(comparison_page(scans), encoding="utf-8")
    return path


def test_changes_are_sorted_and_at_the_longest_common_length(scans):
    first, last = scans[0].scan, scans[-1].scan
    assert common_length([one.scan for one in scans]) == 256
    found = head_changes(first, last)
    assert len(found) == 48
    sizes = [abs(one.change) for one in found]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 0
    a, b = (next(m for m in s.measures if m.length == 256) for s in (first, last))
    for one in found:
        assert one.before == a.table("entropy")[one.layer][one.head]
        assert one.after == b.table("entropy")[one.layer][one.head]


def test_other_models_and_lengths_have_no_changes(scans):
    first = scans[0].scan
    assert head_changes(first, make_scan(layers=2, heads=2)) == []
    assert head_changes(first, make_scan(lengths=(32, 96))) == []
    assert common_length([first, make_scan(lengths=(32, 96))]) is None


def test_one_scan_is_refused(scans):
    with pytest.raises(ArgumentError, match="scans must be two or more, got 1"):
        comparison_payload(scans[:1])


@whole
@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (1440, "light"),
        (390, "dark"),
        pytest.param(1440, "dark", marks=pytest.mark.slow),
        pytest.param(390, "light", marks=pytest.mark.slow),
    ],
)
def test_rows_and_the_slider_in_a_browser(open_page, page, width, scheme):
    opened = open_page(page, color_scheme=scheme)
    opened.page.set_viewport_size({"width": width, "height": 1000})
    rows = opened.page.locator("#changes tbody tr")
    assert rows.count() == 48
    rows.nth(4).click()
    name = rows.nth(4).locator("td").first.inner_text()
    assert opened.page.locator("#head-title").inner_text() == name
    before = rows.first.inner_text()
    opened.page.locator("#scan").press("ArrowLeft")
    assert opened.page.input_value("#other") == "1"
    assert opened.page.locator(".slider output").inner_text() == "half way"
    assert rows.first.inner_text() != before
    seen = {tuple(opened.colours())}
    opened.page.get_by_role("radio", name="half way").click()
    seen.add(tuple(opened.colours()))
    opened.page.select_option("#statistic", "sink_mass")
    seen.add(tuple(opened.colours()))
    assert len(seen) == 3
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert opened.page.evaluate(overflow) <= 0
    assert opened.page.evaluate("window.hacked") is None
    assert opened.errors == []


@whole
def test_models_that_differ_say_so(open_page, tmp_path):
    path = tmp_path / "compare.html"
    pair = [NamedScan("a", make_scan()), NamedScan("b", make_scan(layers=2, heads=2))]
    path.write_text(comparison_page(pair), encoding="utf-8")
    opened = open_page(path)
    assert "different layers and heads" in opened.page.locator(".empty").inner_text()
    assert opened.errors == []
