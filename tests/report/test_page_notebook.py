"""What notebooks show, in a real browser."""

import pytest

from tests.report.synthetic import make_scan


@pytest.mark.whole
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_in_light_and_dark(scheme, browser):
    context = browser.new_context(offline=True, color_scheme=scheme)
    page = context.new_page()
    text = make_scan()._repr_html_()
    page.set_content(f'<html style="color-scheme:light dark"><body>{text}</body></html>')
    ink, ground = (
        page.evaluate(f"getComputedStyle(document.querySelector('{where}')).{what}")
        for where, what in (("td", "color"), ("td", "backgroundColor"))
    )
    assert ink == ("rgb(0, 0, 0)" if scheme == "light" else "rgb(255, 255, 255)")
    assert ground == "rgba(0, 0, 0, 0)"
    context.close()
